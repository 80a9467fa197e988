"""Rollouts: trajectories, rewards, tool calls and stop reason of one attempt at a task; and groups of rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

from agentrl.types.excluded import Excluded
from agentrl.types.messages import Message
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from agentrl.utils.short_repr import counted, short

BASELINE = "baseline"
"""Name of the reward that stores the score of the greedy rollout of the same task (ReMax)."""
INTERACTION = "interaction"
"""Name of the rewards from the simulated user: one per turn, and one for the rollout."""
VERIFIER = "verifier"
"""Name of the reward from the tests of a task folder."""
GUARD = "guard/"
"""Name prefix of guard values (`rewards.guards`). They are stored and logged as rewards, but not added to the score."""


class Stop(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"  # the model ended its turn and called no tool
    INTERACTION_ENDED = "interaction_ended"  # the simulated user ended the conversation
    ENVIRONMENT_DONE = "environment_done"  # the environment's `done` was true after a call
    MAX_ASSISTANT_TURNS = "max_assistant_turns"
    MAX_USER_TURNS = "max_user_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TURN_TOKENS = "max_turn_tokens"  # a turn reached the limit of tokens per turn
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    NO_SUMMARY = "no_summary"  # the model was asked for a summary and wrote none, or called a tool
    DEADLINE = "deadline"
    ABORTED = "aborted"
    ERROR = "error"


class Outcome(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    FORMAT_ERROR = "format_error"  # the model's mistake: malformed call, unknown tool, bad arguments
    LIMIT_ERROR = "limit_error"  # beyond the limit of calls: the call is not run, and the model gets an error
    TOOL_ERROR = "tool_error"  # the tool ran and failed
    TIMEOUT = "timeout"  # stopped at its timeout
    INFRA_ERROR = "infra_error"  # infrastructure of the tool failed; not the policy's fault
    ABORTED = "aborted"  # the rollout ended before the call did


@dataclass(frozen=True, slots=True)
class TurnReward:
    """A reward for one segment of one trajectory of the rollout."""

    trajectory: int
    segment: int
    name: str
    value: float
    observation_key: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall:
    """One tool call of the model, and its outcome.

    Attributes:
        name: the tool that the model named, or "" if no name could be parsed.
        arguments: the arguments as JSON text; for a malformed call, the text that the model wrote.
        result: the answer text, as shown to the model.
        duration_s: seconds from the call to its answer.
        num_tokens: number of tokens that the answer added to the trajectory.
        reward: the reward that the tool returned for this call.
        turn: number of the model turn that contains the call, from 0.
        started_s: seconds from the start of the rollout's tool session to the call.
    """

    name: str
    arguments: str
    result: str
    outcome: Outcome
    duration_s: float = 0.0
    num_tokens: int = 0
    reward: float = 0.0
    turn: int = 0
    trajectory: int = 0
    started_s: float = 0.0

    def __repr__(self) -> str:
        return f"ToolCall({self.name[:30]}, {self.outcome}, {short(self.arguments)} -> {short(self.result)})"


@dataclass(slots=True, repr=False)
class Rollout:
    """One attempt at a task.

    Attributes:
        rewards: rewards by name. Training uses `score`; most algorithms only record the other rewards.
        error: why the rollout failed, in one line; set if `stop` is `error`, or if the reward failed.
        infra_failed: the rollout failed for reasons outside the policy; it is saved, but excluded from most metrics.
        seed: the seed from which the sampling seeds are derived.
        duration_s: wall-clock seconds from start to reward.
        scored_text_sha256: SHA-256 of the text that the reward function received, encoded as UTF-8 (a lone surrogate as
            three bytes). None if no reward function was called.
        operations: operations of the conversations, in the order in which they ended; empty if the agent loop built the
            rollout itself.
        facts: facts from the agent loop, such as the exit code of a harness; the reward gets them in `extra_info`.
    """

    trajectories: list[Trajectory]
    stop: Stop
    rewards: dict[str, float] = field(default_factory=dict)
    turn_rewards: list[TurnReward] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_rewards: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    infra_failed: bool = False
    seed: int = 0
    duration_s: float = 0.0
    scored_text_sha256: str | None = None
    operations: list[Operation] = field(default_factory=list)
    facts: dict[str, JsonValue] = field(default_factory=dict)

    def __repr__(self) -> str:
        turns = sum(trajectory.num_turns for trajectory in self.trajectories)
        tokens = sum(len(trajectory.token_ids) for trajectory in self.trajectories)
        counts = (turns, "turn"), (len(self.tool_calls), "tool call"), (tokens, "token")
        error = f", error {short(self.error, 20)}" if self.error else ""
        return f"Rollout({self.stop}, reward {self.reward:g}, {', '.join(counted(*each) for each in counts)}{error})"

    @property
    def reward(self) -> float:
        """The reward for training: `rewards["score"]`, or 0 before scoring."""
        return self.rewards.get("score", 0.0)

    @property
    def failed(self) -> bool:
        """Whether the rollout ended for reasons that are not the policy's fault."""
        return self.infra_failed or self.stop is Stop.ERROR

    @property
    def valid(self) -> bool:
        """Whether the rollout counts in its group: it has trained tokens, and nothing outside the policy failed.

        A rollout whose agent loop failed has no score. It is left out, not counted with score 0, because 0 may be the
        best score of a group.
        """
        return self.excluded is None

    @property
    def excluded(self) -> Excluded | None:
        """Why the rollout itself cannot be trained on; None if it is valid."""
        if self.infra_failed:
            return Excluded.INFRA_ERROR
        if self.stop is Stop.ERROR:
            return Excluded.FAILED
        trained = any(trajectory.num_trained_tokens for trajectory in self.trajectories)
        return None if trained else Excluded.NO_TRAINED_TOKENS

    @property
    def dialogues(self) -> list[list[Message]]:
        """The messages of each trajectory. A trajectory is left out if a later, longer one starts with its messages."""
        return _longest([trajectory.messages for trajectory in self.trajectories])

    @property
    def trained_dialogues(self) -> list[list[Message]]:
        """The `dialogues` of trajectories whose weight is not 0."""
        return _longest([trajectory.messages for trajectory in self.trajectories if trajectory.weight])

    def following(self, number: int) -> Sequence[Message]:
        """The messages that a later trajectory adds to the messages of trajectory `number`; empty if there are none.

        With `thinking=strip`, a trajectory may be continued by a new trajectory that renders the history again.
        """
        opened = (each.trajectory for each in self.operations if each.kind is OperationKind.RENDER)
        known = self.trajectories[number].messages
        further = (self.trajectories[each].messages for each in opened if number < each < len(self.trajectories))
        return next((messages[len(known) :] for messages in further if messages[: len(known)] == known), ())

    @property
    def policy_versions(self) -> Iterator[int]:
        """The policy versions that sampled the rollout's tokens, one version per `VersionSpan`."""
        for trajectory in self.trajectories:
            for segment in trajectory.segments:
                yield from (span.version for span in segment.policy_versions)


def _longest(found: Sequence[list[Message]]) -> list[list[Message]]:
    return [one for place, one in enumerate(found) if not any(_continues(later, one) for later in found[place + 1 :])]


def _continues(later: Sequence[Message], messages: Sequence[Message]) -> bool:
    return len(later) > len(messages) and later[: len(messages)] == messages


@dataclass(slots=True, repr=False)
class Group:
    """The rollouts of one task."""

    task: Task
    rollouts: list[Rollout]

    def __repr__(self) -> str:
        rewards = [rollout.reward for rollout in self.rollouts]
        rewarded = f", rewards {min(rewards):g} to {max(rewards):g}" if rewards else ""
        return f"Group({short(self.uid)}, {counted(len(rewards), 'rollout')}{rewarded})"

    @property
    def uid(self) -> str:
        """The task uid that the rollouts share."""
        return self.task.uid

    def staleness(self, policy_version: int) -> int:
        """Return `policy_version` minus the oldest version that sampled a token; 0 if nothing was sampled."""
        versions = [version for rollout in self.rollouts for version in rollout.policy_versions]
        return policy_version - min(versions, default=policy_version)
