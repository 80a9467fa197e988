"""How an attempt at a task went: its trajectories, rewards, tool calls and end; and the groups of such attempts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from agentrl.task import Task
from agentrl.trajectory import Trajectory

BASELINE = "baseline"
"""The reward, by name, that is the score of the greedy rollout of the same task (ReMax)."""
GUARD = "guard/"
"""Begins the names of what guards say of a rollout: rewards by name that are watched, not earned."""


class Stop(StrEnum):
    """Why a rollout ended."""

    FINISHED = "finished"  # the model ended its turn and called no tool
    INTERACTION_ENDED = "interaction_ended"  # the simulated user had what it wanted
    MAX_ASSISTANT_TURNS = "max_assistant_turns"
    MAX_USER_TURNS = "max_user_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TURN_TOKENS = "max_turn_tokens"  # one turn ran to its own limit
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    DEADLINE = "deadline"
    ABORTED = "aborted"
    ERROR = "error"


class Outcome(StrEnum):
    """How a tool call ended."""

    OK = "ok"
    FORMAT_ERROR = "format_error"  # the model's mistake: malformed call, unknown tool, bad arguments
    LIMIT_ERROR = "limit_error"  # beyond the calls allowed; answered with an error, not run
    TOOL_ERROR = "tool_error"  # the tool ran and failed
    TIMEOUT = "timeout"  # cut at its deadline
    INFRA_ERROR = "infra_error"  # the world around the tool failed; says nothing about the policy
    ABORTED = "aborted"  # the rollout ended first


@dataclass(frozen=True, slots=True)
class TurnReward:
    """A reward with an address: which segment of which trajectory of the rollout earned it."""

    trajectory: int
    segment: int
    name: str
    value: float
    observation_key: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model made, and what became of it.

    Attributes:
        name: the tool the model named, or "" where no name could be read.
        arguments: the arguments as the model wrote them (JSON text where it was JSON).
        result: the text that was answered, as shown to the model.
        duration_s: seconds from the call to its answer.
        num_tokens: tokens the answer added to the trajectory.
        reward: what the tool itself gave for this call.
        turn: the model turn that made it, counted from 0.
        started_s: seconds from the opening of the rollout's tools to the call.
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


@dataclass(slots=True)
class Rollout:
    """One attempt at a task.

    Attributes:
        rewards: by name; `score` is the one trained on, the others are there to be read.
        error: why the rollout failed, in one line, when `stop` is `error`.
        infra_failed: it failed for reasons outside the policy; it stays visible and is left out of statistics.
        seed: the seed its sampling was derived from.
        duration_s: wall-clock seconds from start to reward.
        scored_text_sha256: of the UTF-8 of the text that the reward was shown (a lone surrogate as three bytes); None
            where no reward function was asked.
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

    @property
    def reward(self) -> float:
        """What training sees: `rewards["score"]`, or 0 before scoring."""
        return self.rewards.get("score", 0.0)

    @property
    def failed(self) -> bool:
        """Whether it ended for reasons that say nothing about the policy."""
        return self.infra_failed or self.stop is Stop.ERROR

    @property
    def valid(self) -> bool:
        """Whether it counts in its group: it has something to learn from, and neither the world nor its loop failed.

        A loop that raises leaves no score, and 0 would be one: the best of its group where the others are negative.
        """
        return not self.failed and any(trajectory.num_trained_tokens for trajectory in self.trajectories)

    @property
    def policy_versions(self) -> Iterator[int]:
        """Every policy version that sampled a token of it."""
        for trajectory in self.trajectories:
            for segment in trajectory.segments:
                yield from (span.version for span in segment.policy_versions)


@dataclass(slots=True)
class Group:
    """The sibling rollouts of one task."""

    task: Task
    rollouts: list[Rollout]

    @property
    def uid(self) -> str:
        """The identity that the rollouts share."""
        return self.task.uid

    def staleness(self, policy_version: int) -> int:
        """`policy_version` minus the oldest version that sampled any of it; 0 if nothing was sampled."""
        versions = [version for rollout in self.rollouts for version in rollout.policy_versions]
        return policy_version - min(versions, default=policy_version)
