"""A simulated user that returns the recorded answers of a rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from agentrl.chat.history import as_one_text
from agentrl.chat.parsers.thinking import tell_apart
from agentrl.interactions.base import BaseInteraction, Sample
from agentrl.interactions.session import Answer, InteractionSession
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message, message_text
from agentrl.types.rollout import INTERACTION, Rollout, Stop, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author

_TOO_LONG = "\n0" * 2**18
"""Stand-in for a user's answer that was not saved, because the answer left no token for the model's reply."""


class RecordedAnswers:
    """The recorded answers of one rollout.

    An answer is used only if the conversation before it equals the recorded conversation.

    Args:
        unrecorded: list to which a line is added for each missing answer; the interaction is not asked for the answer.
            None: the interaction gives the missing answers.
    """

    def __init__(self, rollout: Rollout, unrecorded: list[str] | None = None) -> None:
        self.score = rollout.tool_rewards.get(INTERACTION, 0.0)
        self.unrecorded = unrecorded
        rewards = [reward for reward in rollout.turn_rewards if reward.name == INTERACTION]
        found = [_known(rollout, each) for each in rewards]
        self._known = [each for each in found if each is not None]

    def find(self, messages: Sequence[Message]) -> Answer | None:
        """Return the answer to these messages; None if it was not recorded."""
        asked = _comparable(messages)
        return next((answer for before, answer in self._known if _comparable(before) == asked), None)


class RecordedSession(InteractionSession):
    """Returns recorded answers while the conversation equals the recorded one.

    After the first difference, the interaction answers. If `RecordedAnswers.unrecorded` is a list, `respond` raises an
    error instead.
    """

    def __init__(
        self,
        interactions: Mapping[str, BaseInteraction],
        task: Task,
        recorded: RecordedAnswers,
        *,
        seed: int = 0,
        sample: Sample | None = None,
    ) -> None:
        super().__init__(interactions, task, seed=seed, sample=sample)
        self._recorded = recorded
        self._is_live = False

    async def respond(self, messages: Sequence[Message]) -> Answer:
        """Answer the model's last turn.

        Raises:
            InfraError: the answer was not recorded, and the interaction failed or must not be asked.
        """
        if not self._is_live and (answer := self._recorded.find(messages)) is not None:
            return answer
        if self._recorded.unrecorded is not None:
            self._recorded.unrecorded.append("answer of the simulated user")
            raise InfraError("not recorded: answer of the simulated user")
        if not self._is_live:
            await super().__aenter__()
            self._is_live = True
        return await super().respond(messages)

    async def score(self) -> float:
        """Return the recorded score, or the interaction's score if the interaction has answered a turn."""
        return await super().score() if self._is_live else self._recorded.score

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_live:
            await super().__aexit__(kind, error, traceback)


def _comparable(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages with thoughts outside the content, because older runs saved thoughts in the content."""
    return [_with_thoughts(message) if message["role"] == "assistant" else {**message} for message in messages]


def _with_thoughts(message: Message) -> dict[str, object]:
    thoughts, content = tell_apart(message_text(as_one_text(message)))
    return {**message, "content": content, "reasoning_content": thoughts}


def _known(rollout: Rollout, reward: TurnReward) -> tuple[Sequence[Message], Answer] | None:
    """Return the conversation up to the scored turn, and the user's answer; None if the rollout lacks this turn."""
    trajectory = rollout.trajectories[reward.trajectory]
    turns = [place for place, segment in enumerate(trajectory.segments) if segment.author is Author.MODEL]
    replies = [place for place, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    if reward.segment not in turns or len(replies) < len(turns):
        return None
    end = replies[turns.index(reward.segment) - len(turns)] + 1
    following = trajectory.messages[end : end + 1] or rollout.following(reward.trajectory)[:1]
    return trajectory.messages[:end], _answer(following, reward, rollout.stop)


def _answer(following: Sequence[Message], reward: TurnReward, stop: Stop) -> Answer:
    score = reward.value, reward.observation_key
    if following and following[0]["role"] == "user":
        return Answer(False, str(following[0].get("content")), *score)
    if stop is Stop.MAX_RESPONSE_TOKENS:
        return Answer(False, _TOO_LONG, *score)
    return Answer(stop is not Stop.MAX_ASSISTANT_TURNS, "", *score)
