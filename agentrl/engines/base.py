"""Protocol of the engine, which samples tokens from the policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

from agentrl.capabilities import engine_spec
from agentrl.config.run import RunConfig
from agentrl.types.trajectory import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.chat.format import ChatFormat


WeightStream = Iterable[tuple[str, "Tensor"]]
"""(Hugging Face parameter name, tensor) pairs, one at a time, so that memory never holds a large model twice."""

PauseMode = Literal["drain", "retract", "in_place"]
"""drain: running requests finish first; queued requests wait for `resume`. retract: running requests stop and continue
after `resume`; their KV is recomputed. in_place: running requests stop and continue after `resume` with their old KV,
which older weights may have computed; an engine that cannot keep this KV recomputes it."""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop token or stop string
    LENGTH = "length"  # max_new_tokens, or the model's context is full
    ABORT = "abort"  # aborted or past its deadline; the tokens sampled so far are kept


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion.

    Attributes:
        temperature: divides the logits; 0 is greedy, with log-probabilities of temperature 1.
        top_p, top_k, min_p: parameters of the truncations with these names; 1.0, -1 and 0.0 disable them.
        max_new_tokens: maximum number of sampled tokens; None means until the context is full.
        stop: strings that end the completion; the tokens up to and including the match are kept.
        stop_token_ids: tokens that end the completion and are kept as its last token. The model's end-of-sequence
            tokens always end the completion.
        seed: each random draw depends only on `seed` and the token's position; None uses the engine's own generator.
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
        token_ids: the full context, [T]; at least one token.
        session: name of the conversation; the engine keeps the KV between requests of one session.
        deadline_s: timeout in seconds; None means no timeout. On timeout, the completion has the tokens sampled so far
            and the finish reason `abort`.
        priority: requests with higher priority are scheduled first, if the engine supports priorities.
        images: data URLs, in the order of their positions in the context; an engine without image support raises
            ValueError.
        image_starts: position in the context of the first token of each image. Image tokens at other positions, which a
            model may sample, are not images.
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
    """A sampled completion.

    Attributes:
        token_ids: [N] sampled tokens, including the stop token.
        logprobs: [N] log-probabilities under the behaviour distribution softmax(logits / temperature),
            before top-p, top-k and min-p.
        policy_versions: policy version of each span of tokens; the spans cover all N tokens.
        num_cached_tokens: number of context tokens whose KV was reused from the cache.
        matched_stop: the stop string that ended the completion, if a stop string did.
        routed_experts: [T + N - 1, layers, top k] int32: the experts of every token of context and completion, except
            the last token. None if experts were not requested.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_versions: Sequence[VersionSpan]
    finish_reason: FinishReason
    num_cached_tokens: int = 0
    matched_stop: str | None = None
    routed_experts: Tensor | None = None


COUNTERS = ("prompt_tokens", "cached_tokens", "forwarded_tokens", "sampled_tokens", "decode_steps", "prefill_steps")
"""Counters of an embedded engine, which runs in this process; see `Engine.metrics`. Remote engines do not count
steps."""


class Engine(Protocol):
    """Samples tokens. All methods are safe to call from one event loop at any time.

    A request that can never be served raises ValueError immediately and does not affect other requests. Examples: an
    empty context, a context longer than the model allows, a token id outside the vocabulary.
    """

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion. Cancelling the awaiting task stops sampling."""
        ...

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Replace the weights in place. Tokens sampled afterwards have policy version `version`.

        Cached KV is dropped, unless the engine is paused with `in_place` and can keep KV of older weights.
        Raises ValueError for an unknown name or a wrong shape; weights and version are then unchanged.
        """
        ...

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Stop sampling; new requests wait. Returns when nothing is being computed."""
        ...

    async def resume(self) -> None:
        """Continue sampling after `pause`."""
        ...

    async def abort(self, session: str) -> None:
        """End the session's running request with the finish reason `abort`, and drop the session's KV.

        The completion has the tokens sampled so far.
        """
        ...

    async def release(self, session: str) -> None:
        """Drop the KV of a finished conversation. Unknown sessions are ignored."""
        ...

    async def close(self) -> None:
        """End all requests with the finish reason `abort`, and free all resources. A second call does nothing."""
        ...

    def metrics(self) -> dict[str, float]:
        """Counters since the start.

        Every engine has `prompt_tokens`, `cached_tokens`, `forwarded_tokens` and `sampled_tokens`. An embedded engine
        adds `decode_steps` and `prefill_steps`. An engine that may evict the KV of open conversations adds
        `evicted_sessions`.
        """
        ...


class Colocated(Engine, Protocol):
    """An engine that shares a GPU with the trainer, and can release its memory while it is paused."""

    def check_memory_saver(self) -> None:
        """Raise AgentRLError if the engine cannot release its memory."""
        ...

    async def release_memory(self, *, weights: bool) -> None:
        """Free the memory of the KV cache and, if `weights` is True, of the weights. No request may run."""
        ...

    async def resume_memory(self, *, weights: bool) -> None:
        """Allocate the released memory again. The memory's content is lost: weights must be loaded before sampling."""
        ...


async def load_engine(config: RunConfig, chat: ChatFormat) -> Engine:
    """Create the engine that `rollout.engine` names.

    Raises:
        AgentRLError: the engine or the model cannot be used as configured.
    """
    engine: Engine = await engine_spec(config.rollout.engine).load(config, chat)
    return engine


def check_context(token_ids: Sequence[int], vocabulary: int, max_sequence_length: int) -> None:
    """Refuse a context that cannot be continued.

    Raises:
        ValueError: the context is empty, has an id outside the vocabulary, or leaves no room within
            `max_sequence_length`.
    """
    if len(token_ids) == 0:
        raise ValueError("the context is empty")
    if min(token_ids) < 0 or max(token_ids) >= vocabulary:
        raise ValueError(f"the context has a token id outside the vocabulary of {vocabulary}")
    if (length := len(token_ids)) >= max_sequence_length:
        raise ValueError(f"the context has {length} tokens and leaves no room in {max_sequence_length}")


def check_sampling(sampling: SamplingParams) -> None:
    """Refuse sampling parameters outside their valid range.

    Raises:
        ValueError: a parameter is out of range; the message names the parameter and its range.
    """
    for valid, rule in (
        (0 <= sampling.temperature < float("inf"), f"temperature {sampling.temperature} is not a number from 0"),
        (0 < sampling.top_p <= 1, f"top_p {sampling.top_p} is not above 0 and at most 1"),
        (0 <= sampling.min_p <= 1, f"min_p {sampling.min_p} is not between 0 and 1"),
        (sampling.top_k == -1 or sampling.top_k > 0, f"top_k {sampling.top_k} is neither -1 nor positive"),
        (sampling.max_new_tokens is None or sampling.max_new_tokens > 0, "max_new_tokens must be positive"),
    ):
        if not valid:
            raise ValueError(rule)
