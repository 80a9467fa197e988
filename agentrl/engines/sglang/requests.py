"""Convert a request to the body of `/generate`, and the server's answer to a completion. Pure functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, ValidationError

from agentrl.engines.base import (
    Completion,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    check_context,
    check_sampling,
)
from agentrl.engines.sglang.client import Answer, ServerError
from agentrl.types.trajectory import VersionSpan

if TYPE_CHECKING:
    from torch import Tensor


RESERVED = 6
"""SGLang reserves this number of tokens: max_req_input_len = context length - 1 - 5 (tp_worker.py)."""

NOTHING = Completion((), (), (), FinishReason.ABORT)


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits and features of the servers, for checking requests.

    Attributes:
        vocabulary: number of token ids. An id outside the vocabulary or an empty context crashes a server.
        max_sequence_length: longest context plus completion, in tokens.
        max_input_tokens: servers refuse a context of this many tokens or more. The limit is a few tokens below the
            server's context length.
        priority: whether the servers schedule by priority; if False, they refuse a request with a priority.
        seeded: whether the servers use the seed, which needs deterministic inference.
        images: whether the model accepts images.
        stop_strings: whether the servers have a tokenizer. Stop strings need one.
        routed_experts: (layers, experts per token) if the servers should report the experts of each token.
    """

    vocabulary: int
    max_sequence_length: int
    max_input_tokens: int
    priority: bool = False
    seeded: bool = False
    images: bool = False
    stop_strings: bool = True
    routed_experts: tuple[int, int] | None = None

    def check(self, request: GenerateRequest) -> None:
        """Refuse a request that can never be served.

        Raises:
            ValueError: the request can never be served; the message names the reason.
        """
        check_sampling(request.sampling)
        check_context(request.token_ids, self.vocabulary, self.max_sequence_length)
        if request.images and not self.images:
            raise ValueError("this model does not accept images")
        if request.sampling.stop and not self.stop_strings:
            raise ValueError("stop strings need a tokenizer, but a server was started without one")

    def room(self, request: GenerateRequest) -> int:
        """Number of tokens that may be sampled; 0 if the context is so long that a server would refuse it."""
        length = len(request.token_ids)
        if length >= self.max_input_tokens:
            return 0
        room = min(self.max_sequence_length, self.max_input_tokens + RESERVED) - length
        return min(room, request.sampling.max_new_tokens or room)

    def body(self, request: GenerateRequest, rid: str, cache_key: str | None = None) -> dict[str, object]:
        """Return the body of `/generate` for a request that passed `check` and for which `room` is not 0.

        Args:
            rid: request id for an abort. A server aborts every request whose rid starts with the given rid, so no rid
                may be the prefix of another.
            cache_key: KV is shared only between requests with the same key.
        """
        sampling = {**_sampling(request.sampling), "max_new_tokens": self.room(request)}
        if self.seeded and request.sampling.seed is not None:
            sampling["sampling_seed"] = request.sampling.seed % 2**63
        body = {
            "input_ids": request.token_ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "rid": rid,
            "extra_key": cache_key,
            "priority": request.priority if self.priority else None,
            "image_data": list(request.images) or None,
            "return_routed_experts": self.routed_experts and True,
        }
        return _given(body)


def read_completion(
    answer: Answer, request: GenerateRequest, routed_experts: tuple[int, int] | None = None
) -> Completion:
    """Convert an answer of `/generate` to a completion.

    Args:
        routed_experts: as in `Terms`.

    Raises:
        ServerError: the answer is inconsistent, has invalid fields, or reports a failure of the server.
    """
    parsed = _read(answer)
    meta = parsed.meta_info
    if meta.finish_reason.type == "abort" and meta.finish_reason.status_code is not None:
        raise ServerError(f"the server aborted a request: {meta.finish_reason.message}")
    logprobs, token_ids = [entry[0] for entry in meta.output_token_logprobs], parsed.output_ids
    spans = _version_spans(meta.weight_versions)
    _check_counts(parsed, request, sum(span.num_tokens for span in spans))
    reason, matched = FinishReason(meta.finish_reason.type), meta.finish_reason.matched
    stop = matched if isinstance(matched, str) else None
    experts = None
    if routed_experts is not None and (reason is not FinishReason.ABORT or meta.routed_experts is not None):
        experts = decode_routed_experts(meta.routed_experts, len(request.token_ids) + len(token_ids), *routed_experts)
    return Completion(token_ids, logprobs, spans, reason, meta.cached_tokens, stop, experts)


class _Finish(BaseModel):
    type: FinishReason
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Span(BaseModel):
    version: str
    start: int
    end: int


class _Meta(BaseModel):
    finish_reason: _Finish
    completion_tokens: int
    output_token_logprobs: list[tuple[float, int, str | None]] = Field(default=[])
    weight_versions: list[_Span] = Field(default=[])
    prompt_tokens: int | None = None  # missing if the request was aborted before the prompt was computed
    cached_tokens: int = 0
    routed_experts: str | None = None


class _Answer(BaseModel):
    output_ids: list[int]
    meta_info: _Meta


def _read(answer: Answer) -> _Answer:
    try:
        return _Answer.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ServerError(f"the server's answer cannot be read: {place}: {first['msg']}") from error


def _sampling(sampling: SamplingParams) -> dict[str, object]:
    """Sampling parameters under SGLang's names. Temperature 0 is greedy, with log-probabilities of temperature 1."""
    params = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "no_stop_trim": True,
    }
    return _given(params)


def _given(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _version_spans(spans: Sequence[_Span]) -> list[VersionSpan]:
    try:
        return [VersionSpan(int(span.version), span.end - span.start) for span in spans if span.end > span.start]
    except ValueError:
        versions = ", ".join(f"'{span.version}'" for span in spans)
        raise ServerError(f"the server's weights are of version {versions}: expected a policy version") from None


def _check_counts(parsed: _Answer, request: GenerateRequest, num_versioned: int) -> None:
    meta, num_tokens = parsed.meta_info, len(parsed.output_ids)
    counts = (meta.completion_tokens, len(meta.output_token_logprobs), num_versioned)
    if counts != (num_tokens,) * 3:
        raise ServerError(
            f"the server's answer has {num_tokens} tokens, but reports {counts[0]} tokens, {counts[1]}"
            " log-probabilities"
            f" and {counts[2]} weight versions"
        )
    if [entry[1] for entry in meta.output_token_logprobs] != parsed.output_ids:
        raise ServerError("the server's log-probabilities do not belong to the tokens of its answer")
    if meta.prompt_tokens is not None and not request.images and meta.prompt_tokens != len(request.token_ids):
        raise ServerError(f"the server read {meta.prompt_tokens} of {len(request.token_ids)} tokens of context")


def decode_routed_experts(value: object, num_tokens: int, num_layers: int, top_k: int) -> Tensor:
    """Decode `meta_info.routed_experts` to [num_tokens - 1, num_layers, top_k] int32. Layers without router are all 0.

    SGLang writes base64 of little-endian int32 without a shape (`state_capturer/routed_experts.py`).

    Args:
        num_tokens: tokens of context and completion. The last token is never fed to the model, so it has no experts.
        num_layers: all layers of the model, dense layers included: `num_hidden_layers` of the model's configuration.
        top_k: `num_experts_per_tok` of the model's configuration.

    Raises:
        ServerError: the value is not base64 text or has the wrong length.
    """
    import numpy as np
    import torch

    if not isinstance(value, str):
        raise ServerError(
            f"expected routed experts, got {value!r}: start the server with '--enable-return-routed-experts'"
        )
    try:
        content = base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ServerError(f"the server's routed experts are not base64: {error}") from error
    if len(content) != 4 * (num_tokens - 1) * num_layers * top_k:
        raise ServerError(
            f"the server's routed experts have {len(content)} bytes, not 4 for each of {num_tokens - 1} tokens,"
            f" {num_layers} layers and {top_k} experts"
        )
    experts = np.frombuffer(bytearray(content), "<i4")  # a writable copy, as torch requires
    return torch.from_numpy(experts).view(num_tokens - 1, num_layers, top_k)
