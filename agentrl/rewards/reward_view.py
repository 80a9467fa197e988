"""Builds the arguments of a reward from a rollout: the model's text, and all other data in `extra_info`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypedDict

from agentrl.chat.history import as_one_text
from agentrl.chat.parsers.thinking import tell_apart
from agentrl.types.messages import Message, message_text
from agentrl.types.rollout import Rollout
from agentrl.types.trajectory import Author, Trajectory

ENVIRONMENT = "environment"
"""Key of `extra_info` with the rollout's environment object, if there is one. Replay does not have this object."""


class RolloutInfo(TypedDict):
    """Entries of `extra_info` about the rollout, besides the row's own columns."""

    turn_texts: list[str]
    """Text of each model turn."""
    last_turn: str
    """Text of the last model turn; "" if there is none."""
    turn_thoughts: list[str]
    """Thoughts of each model turn, without thought tags; "" if the turn has none."""
    turn_contents: list[str]
    """Text of each model turn without thoughts and tool calls."""
    completion_ids: list[int]
    """Token ids after the prompt, of all trajectories, including text of tools and users."""
    response_lengths: list[int]
    """Number of tokens after the prompt, one entry per trajectory."""
    conversation: list[Message]
    """Messages of the last trajectory, including the prompt. Each `content` includes the thoughts with their tags."""
    token_ids: list[int]
    """Token ids of the last trajectory, including the prompt."""
    num_turns: int
    """Number of model turns."""
    num_tool_calls: int
    """Number of tool calls."""
    tool_outcomes: list[str]
    """Outcome of each call, in call order: ok, format_error, limit_error, tool_error, timeout, infra_error, aborted."""
    tool_text: str
    """Answers of all calls, joined by newlines."""
    tool_rewards: list[float]
    """Reward of each call: the second value that `execute` returns."""
    rollout_reward_scores: dict[str, float]
    """Name of a tool or an environment -> its reward for the rollout, from `calc_reward` or `reward`; `interaction` ->
    the score of the simulated user."""
    turn_scores: list[float]
    """Scores that the simulated user gave to the model's turns, one with each answer of the user."""
    stop: str
    """Why the rollout ended, for example `finished` (see Stop reasons in the reference)."""


def solution_view(
    rollout: Rollout, chat_text: Callable[[Sequence[int]], str], include_tool_text: bool = False
) -> tuple[str, dict[str, object]]:
    """Return (solution_str, additions to the row's extra_info).

    The solution is the text of the model's turns, joined by newlines. Text of tools and users is added only with
    `include_tool_text`, because a reward that searches for the answer would also find it in a tool's text.

    Args:
        chat_text: returns the text of some tokens, as `ChatFormat.text` does.
    """
    texts = [_turn_texts(trajectory, chat_text) for trajectory in rollout.trajectories]
    turns, calls = list(chain.from_iterable(texts)), rollout.tool_calls
    replies = [each for pair in zip(rollout.trajectories, texts, strict=True) for each in _replies(*pair)]
    extra: RolloutInfo = {
        "turn_texts": turns,
        "last_turn": turns[-1] if turns else "",
        "turn_thoughts": [thoughts for thoughts, _ in map(told_apart, replies)],
        "turn_contents": [content for _, content in map(told_apart, replies)],
        "completion_ids": [token_id for trajectory in rollout.trajectories for token_id in _response(trajectory)],
        "response_lengths": [trajectory.num_response_tokens for trajectory in rollout.trajectories],
        "conversation": [*map(as_one_text, rollout.trajectories[-1].messages)] if rollout.trajectories else [],
        "token_ids": list(rollout.trajectories[-1].token_ids) if rollout.trajectories else [],
        "num_turns": len(turns),
        "num_tool_calls": len(calls),
        "tool_outcomes": [call.outcome.value for call in calls],
        "tool_text": "\n".join(call.result for call in calls),
        "tool_rewards": [call.reward for call in calls],
        "rollout_reward_scores": dict(rollout.tool_rewards),
        "turn_scores": [reward.value for reward in rollout.turn_rewards],
        "stop": rollout.stop.value,
    }
    if include_tool_text:
        turns = [chat_text(_response(trajectory)) for trajectory in rollout.trajectories]
    return "\n".join(turns), {**rollout.facts, **extra}


def parts_of_texts(replies: Sequence[Message]) -> dict[str, list[str]]:
    """Return `turn_thoughts` and `turn_contents` of model turns that are known only as messages."""
    turns = [told_apart(message) for message in replies]
    return {"turn_thoughts": [thoughts for thoughts, _ in turns], "turn_contents": [content for _, content in turns]}


def told_apart(message: Message) -> tuple[str, str]:
    """Return thoughts and content of a model turn. In older runs and plain texts, the content contains the thoughts."""
    content = message_text(message)
    return (message["reasoning_content"], content) if "reasoning_content" in message else tell_apart(content)


def _turn_texts(trajectory: Trajectory, chat_text: Callable[[Sequence[int]], str]) -> list[str]:
    return [chat_text(segment.token_ids) for segment in trajectory.segments if segment.author.trained]


def _replies(trajectory: Trajectory, texts: Sequence[str]) -> list[Message]:
    """Return the message of each model turn.

    If there are fewer messages than turns, because the agent loop recorded none, build messages from the turns' texts.
    """
    replies = [message for message in trajectory.messages if message["role"] == "assistant"]
    if len(replies) < len(texts):
        return [Message(role="assistant", content=text) for text in texts]
    return replies[len(replies) - len(texts) :]


def _response(trajectory: Trajectory) -> list[int]:
    """Return the token ids after the first prompt."""
    prompt = len(trajectory.token_ids) - trajectory.num_response_tokens
    first = trajectory.segments[0].author if trajectory.segments else Author.PROMPT
    return list(trajectory.token_ids[prompt if first is Author.PROMPT else 0 :])
