"""The engine: samples tokens from the policy. One protocol, several implementations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from agentrl.trajectory import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

WeightStream = Iterable[tuple[str, "Tensor"]]
"""(Hugging Face parameter name, tensor), one at a time, so that a large model never stands in memory twice."""

PauseMode = Literal["drain", "retract", "in_place"]
"""drain: requests under way finish first; those that find no room wait for `resume`. retract: all stop where they are
and go on after `resume`, their KV computed anew. in_place: likewise, on the KV they have, also that of older weights,
where the engine can keep it."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop token or stop string
    LENGTH = "length"  # max_new_tokens, or the model's context is full
    ABORT = "abort"  # aborted or past its deadline; the tokens so far are kept


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion.

    Attributes:
        temperature: divides the logits; 0 is greedy (log-probabilities are then those of temperature 1).
        top_p, top_k, min_p: the usual truncations; 1.0, -1 and 0.0 switch them off.
        max_new_tokens: at most so many tokens, None for what the context holds.
        stop: strings that end the completion; the tokens up to and including the match are kept.
        stop_token_ids: tokens that end it, kept as its last token; the model's own end tokens always do.
        seed: every draw is a function of (seed, position); None draws from the engine's own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion to sample.

    Attributes:
        token_ids: the whole context, [T]; at least one token.
        session: requests of one session are one conversation: the engine keeps its KV between them.
        deadline_s: seconds from now after which what was sampled so far comes back as an `abort`; None waits.
        priority: higher ones first, where the engine can choose.
        images: data URLs, in the order of their places in the context; an engine that takes none raises ValueError.
        image_starts: where the tokens of each begin in the context. An equal token elsewhere, which a model may sample,
            stands for no image.
    """

    token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    session: str = ""
    deadline_s: float | None = None
    priority: int = 0
    images: Sequence[str] = ()
    image_starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled.

    Attributes:
        token_ids: [N] sampled tokens, the stop token included.
        logprobs: [N] log-probabilities under the behaviour distribution softmax(logits / temperature),
            before top-p, top-k and min-p.
        policy_versions: which weights sampled them; the spans cover all N tokens.
        num_cached_tokens: context tokens that were not computed again.
        matched_stop: the stop string that ended it, where one did.
        routed_experts: [T + N - 1, layers, top k] int32, of every token that predicted another, context included: the
            experts it was sent to. None where the engine was not asked for them.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_versions: Sequence[VersionSpan]
    finish_reason: FinishReason
    num_cached_tokens: int = 0
    matched_stop: str | None = None
    routed_experts: Tensor | None = None


COUNTERS = ("prompt_tokens", "cached_tokens", "forwarded_tokens", "sampled_tokens", "decode_steps", "prefill_steps")
"""What an engine in this process counts, see `Engine.metrics`; one elsewhere knows of no steps."""


class Engine(Protocol):
    """Samples tokens. All methods are safe to call from one event loop at any time.

    A request that cannot be served at all (empty context, context longer than the model's, a token id outside
    the vocabulary) raises ValueError at once and disturbs no other request.
    """

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion. Cancelling the awaiting task stops the work."""
        ...

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Replace the weights in place; what is sampled afterwards carries `version`. Cached KV is dropped.

        Raises ValueError, with the weights and version as they were, for an unknown name or a wrong shape.
        """
        ...

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Stop sampling; new requests wait. Returns when nothing is being computed."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def abort(self, session: str) -> None:
        """End the session's request under way, which returns what it has as an `abort`, and forget its KV."""
        ...

    async def release(self, session: str) -> None:
        """The conversation is over: forget its KV. Unknown sessions are fine."""
        ...

    async def close(self) -> None:
        """End all requests as `abort` and free everything. A second call does nothing."""
        ...

    def metrics(self) -> dict[str, float]:
        """Counters since the start: `prompt_tokens`, `cached_tokens`, `forwarded_tokens`, `sampled_tokens`,
        `decode_steps` and `prefill_steps` of an engine in this process, `evicted_sessions` where open conversations may
        be forgotten, and whatever else the engine counts."""
        ...
