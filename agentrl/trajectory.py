"""What an agent did, in tokens: segments, trajectories, rollouts and groups (design, sections 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from agentrl.messages import Message
from agentrl.task import Task

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V")


class Author(StrEnum):
    """Who wrote a segment. The loss mask follows from this alone."""

    PROMPT = "prompt"
    MODEL = "model"
    TOOL = "tool"
    USER = "user"
    DEMONSTRATION = "demonstration"  # trained, but sampled by nobody: SFT, imported dialogues

    @property
    def trained(self) -> bool:
        """Whether tokens of this author are trained on."""
        return self is Author.MODEL or self is Author.DEMONSTRATION


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
class VersionSpan:
    """`num_tokens` consecutive sampled tokens, and the policy version whose weights sampled them."""

    version: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens by one author.

    Attributes:
        token_ids: the tokens, exactly as sampled or rendered; never empty for the model.
        logprobs: one a token, natural log, of the behaviour distribution softmax(logits / temperature);
            exactly when the author is the model.
        policy_versions: which weights sampled which tokens, in order; exactly when the author is the model.
        temperature: the sampling temperature of a model segment; 1 otherwise.
        media: content hashes of images or video that belong to these tokens.

    Raises:
        ValueError: the numbers do not match the tokens.
    """

    author: Author
    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    policy_versions: Sequence[VersionSpan] = ()
    temperature: float = 1.0
    media: Sequence[str] = ()

    def __post_init__(self) -> None:
        if (self.author is Author.MODEL) != (self.logprobs is not None):
            raise ValueError(f"a {self.author} segment has logprobs exactly when the model wrote it")
        if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
            raise ValueError(f"{len(self.logprobs)} logprobs for {len(self.token_ids)} tokens")
        covered = sum([span.num_tokens for span in self.policy_versions])  # every segment that is read passes here
        if covered != (len(self.token_ids) if self.author is Author.MODEL else 0):
            raise ValueError(f"policy versions cover {covered} of {len(self.token_ids)} {self.author} tokens")

    def __len__(self) -> int:
        return len(self.token_ids)


class Trajectory:
    """An append-only list of segments; everything else about it is derived from them.

    The prompt [1 2] asks, the model calls a tool [3 4], the tool replies [5], the model answers [6]:

        token_ids = [1 2 3 4 5 6]      loss_mask = [0 0 1 1 0 1]

    `messages` is the same conversation as text and structured calls, for rewards and readers.
    """

    __slots__ = ("_routed_experts", "_segments", "_token_ids", "messages")

    def __init__(self, segments: Sequence[Segment] = (), messages: Sequence[Message] = ()) -> None:
        self._segments: list[Segment] = []
        self._token_ids: list[int] = []  # grown by append, so that a long conversation is not joined anew each turn
        self._routed_experts: list[Tensor] = []
        self.messages: list[Message] = list(messages)
        for segment in segments:
            self.append(segment)

    def append(self, segment: Segment) -> None:
        """Add what came next; an empty segment adds nothing."""
        if segment.token_ids:
            self._segments.append(segment)
            self._token_ids.extend(segment.token_ids)

    def keep_routed_experts(self, experts: Tensor | None) -> None:
        """Keep what a completion says of all tokens so far but the last, [T - 1, layers, top k]; None says nothing.

        Where a token's experts are known already they stay: those of the pass that sampled after it.

        Raises:
            ValueError: they are of more tokens than predict another.
        """
        if experts is None:
            return
        if len(experts) >= max(1, len(self._token_ids)):
            raise ValueError(f"routed experts of {len(experts)} tokens, where {len(self._token_ids)} are known")
        known = sum(map(len, self._routed_experts))
        if len(experts) > known:
            new = experts[known:]  # one number for each token, layer and choice: kept in as few bytes as hold it
            self._routed_experts.append(new.byte() if int(new.max()) < 256 else new.short())

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, in order."""
        return self._segments

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens, [T]. A view that grows with the trajectory: copy it to keep it."""
        return self._token_ids

    @property
    def routed_experts(self) -> Tensor | None:
        """[R, layers, top k], R < T: the experts that the first R tokens were sent to; None where none are known.

        After a model turn R is T - 1: the last token predicts nothing yet. uint8 where that holds them, else int16.
        """
        if len(self._routed_experts) > 1:
            import torch

            self._routed_experts = [torch.cat(self._routed_experts)]
        return self._routed_experts[0] if self._routed_experts else None

    @property
    def loss_mask(self) -> list[int]:
        """[T], 1 where the token is trained on."""
        return self._per_token(lambda segment: [int(segment.author.trained)] * len(segment))

    @property
    def logprobs(self) -> list[float]:
        """[T], the behaviour log-probability of sampled tokens, 0 elsewhere: read it through the mask."""
        return self._per_token(lambda segment: segment.logprobs or [0.0] * len(segment))

    @property
    def temperatures(self) -> list[float]:
        """[T], the sampling temperature of sampled tokens, 1 elsewhere."""
        return self._per_token(lambda segment: [segment.temperature] * len(segment))

    @property
    def sampled(self) -> bool:
        """Whether every trained token was sampled by a model, so that ratios exist."""
        return not any(segment.author is Author.DEMONSTRATION for segment in self._segments)

    @property
    def num_turns(self) -> int:
        """How many turns the model (or the demonstration) took."""
        return sum(segment.author.trained for segment in self._segments)

    @property
    def num_response_tokens(self) -> int:
        """How many tokens follow the first prompt segment."""
        return len(self._token_ids) - (len(self._segments[0]) if self._segments else 0)

    @property
    def num_trained_tokens(self) -> int:
        """How many tokens are trained on."""
        return sum(len(segment) for segment in self._segments if segment.author.trained)

    def _per_token(self, values: Callable[[Segment], Sequence[V]]) -> list[V]:
        return list(chain.from_iterable(map(values, self._segments)))


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
