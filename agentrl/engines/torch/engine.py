"""Embedded engine: samples a Hugging Face causal language model in this process, in a separate thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from agentrl.engines.base import (
    COUNTERS,
    Completion,
    GenerateRequest,
    PauseMode,
    WeightStream,
    check_context,
    check_sampling,
)
from agentrl.engines.torch.forward import limits_for, one_by_one
from agentrl.engines.torch.image_forward import ImageRunner
from agentrl.engines.torch.image_scheduler import ImageScheduler
from agentrl.engines.torch.jobs import Job
from agentrl.engines.torch.kv_cache import Conversations, NoKV
from agentrl.engines.torch.kv_check import choose_runner
from agentrl.engines.torch.paged_kv import BLOCK_SIZE, num_blocks_for
from agentrl.engines.torch.scheduler import Scheduler
from agentrl.engines.torch.stopping import DecodingTokenizer
from agentrl.engines.torch.worker import Worker
from agentrl.errors import ConfigError
from agentrl.models.images import ImageInputs
from agentrl.models.weights_in_place import load_in_place
from agentrl.utils.seeds import derive_seed

MAX_NUM_SEQS = 128
"""Default of `max_num_seqs`."""


class TorchEngine:
    """Engine with continuous batching. KV is kept over a session's turns and shared by equal prompts.

    Args:
        model: any causal language model of transformers. Only the engine may run the model from now on.
        max_num_seqs: maximum number of requests computed together; further requests wait.
        max_sequence_length: longest context plus completion; default: the model's limit.
        max_kv_tokens: capacity of the KV cache in tokens; default: enough for `max_num_seqs` full sequences.
        deterministic: completions are bitwise independent of the other requests (docs/design.md, section 9), but
            sampling is slower.
        device: the model is moved to this device; default: its current device.
        eos_token_ids: tokens that end every completion; default: the model's end-of-sequence tokens.
        tokenizer: needed for stop strings only.
        images: processor of a vision-language model. Such a model runs one request at a time with transformers' KV
            cache, even if `max_num_seqs` is larger. Without a processor, requests with images are refused.
        seed: base of the seeds of requests that have no seed.

    The attribute `kv_reuse` is False if the model's KV cannot be reused correctly. In this case, each new
    token costs a forward pass over its full sequence; a warning gives the reason.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_num_seqs: int = MAX_NUM_SEQS,
        max_sequence_length: int | None = None,
        max_kv_tokens: int | None = None,
        deterministic: bool = False,
        device: str | torch.device | None = None,
        eos_token_ids: Sequence[int] | None = None,
        tokenizer: DecodingTokenizer | None = None,
        images: ImageInputs | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model.eval() if device is None else model.eval().to(device)
        self.max_sequence_length = max_sequence_length or _context_of(model)
        self.eos_token_ids = eos_token_ids_of(model) if eos_token_ids is None else tuple(eos_token_ids)
        self._vocabulary = model.get_input_embeddings().num_embeddings
        self._tokenizer, self._seed, self._num_seedless = tokenizer, seed, 0
        full_length = num_blocks_for(self.max_sequence_length)
        self._capacity = num_blocks_for(max_kv_tokens) if max_kv_tokens else max_num_seqs * full_length
        self._images, self.kv_reuse = images, True
        self._scheduler: Scheduler | ImageScheduler
        if images is not None:
            self._scheduler = ImageScheduler(ImageRunner(self.model, images), max_num_seqs, tokenizer)
        else:
            self._scheduler = self._text_scheduler(max_num_seqs, full_length, deterministic)
        self._worker = Worker(self._scheduler)

    def _text_scheduler(self, max_num_seqs: int, full_length: int, deterministic: bool) -> Scheduler:
        limits = limits_for(self.model.device.type, max_num_seqs, fixed=deterministic)
        runner, isolated = choose_runner(self.model, self.max_sequence_length, limits)
        self.kv_reuse = runner.kv_reuse
        conversations = (Conversations if runner.kv_reuse else NoKV)(
            runner.store,
            self._capacity,
            shares=not isolated,
            full_length=min(full_length, self._capacity) if deterministic else None,
        )
        return Scheduler(runner, conversations, one_by_one(limits) if isolated else limits, self._tokenizer)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion; see `Engine.generate`.

        Raises:
            ValueError: the request can never be served.
            NonFiniteLogitsError: the model's logits are NaN.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        job = self._job(request, partial(self._worker.settle, loop, future))
        abort = partial(self._worker.submit, partial(self._worker.abort, lambda other: other is job))
        self._worker.submit(partial(self._worker.accept, job))
        deadline = None if request.deadline_s is None else loop.call_later(request.deadline_s, abort)
        try:
            return await future
        except asyncio.CancelledError:
            abort()
            raise
        finally:
            if deadline is not None:
                deadline.cancel()

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        """Replace weights in place, all or nothing; missing weights keep their values. Running requests continue."""
        await self._worker.call(partial(self._load, weights, version))

    async def pause(self, mode: PauseMode = "drain") -> None:
        """Stop sampling; returns when nothing is being computed."""
        loop = asyncio.get_running_loop()
        quiet: asyncio.Future[None] = loop.create_future()
        self._worker.submit(partial(self._worker.pause, mode, partial(self._worker.settle, loop, quiet, None)))
        await quiet

    async def resume(self) -> None:
        """Continue sampling after `pause`."""
        await self._worker.call(self._worker.resume)

    async def abort(self, session: str) -> None:
        """End the session's requests with the tokens so far, and drop the session's KV."""
        await self._worker.call(partial(self._worker.abort, lambda job: job.request.session == session))
        await self.release(session)

    async def release(self, session: str) -> None:
        """Drop the session's KV."""
        await self._worker.call(partial(self._scheduler.conversations.release, session))

    async def close(self) -> None:
        """End all requests as `abort` does, and stop the thread. A second call does nothing."""
        if not self._worker.closed:
            await self._worker.call(self._worker.stop)
            self._worker.join()

    def metrics(self) -> dict[str, float]:
        """Counters since the start, and the current numbers of running requests, waiting requests and KV tokens."""
        conversations = self._scheduler.conversations
        return {
            **{name: float(self._scheduler.counters[name]) for name in COUNTERS},
            "evicted_sessions": float(conversations.num_evicted),
            "running_requests": float(len(self._scheduler.running)),
            "waiting_requests": float(len(self._scheduler.jobs) - len(self._scheduler.running)),
            "kv_tokens": float(conversations.kv_tokens),
            "kv_reuse": float(self.kv_reuse),
        }

    def _load(self, weights: WeightStream, version: int) -> None:
        load_in_place(self.model, weights)
        self._scheduler.weights_changed(version)

    def _job(self, request: GenerateRequest, resolve: Callable[[Completion | Exception], None]) -> Job:
        check_sampling(request.sampling)
        max_length = self._checked_length(request)
        if request.images and self._images is None:
            raise ValueError("this model does not accept images")
        if request.sampling.stop and self._tokenizer is None:
            raise ValueError("stop strings need a tokenizer, but this engine has none")
        seed = request.sampling.seed
        if seed is None:
            self._num_seedless += 1
            seed = derive_seed(self._seed, self._num_seedless)
        stops = frozenset((*request.sampling.stop_token_ids, *self.eos_token_ids))
        return Job(request, resolve, seed, stops, max_length, token_ids=list(request.token_ids))

    def _checked_length(self, request: GenerateRequest) -> int:
        """Return the maximum length of context plus completion."""
        check_context(request.token_ids, self._vocabulary, self.max_sequence_length)
        length, asked = len(request.token_ids), request.sampling.max_new_tokens
        wanted = min(self.max_sequence_length, length + asked if asked else self.max_sequence_length)
        room = self._capacity * BLOCK_SIZE
        if (wanted if asked else length + 1) > room:
            raise ValueError(f"context and completion need {wanted} tokens, more than max_kv_tokens, {room}")
        return min(wanted, room)


def _context_of(model: PreTrainedModel) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not limit:
        raise ConfigError.keyless("the model's configuration has no max_position_embeddings: pass max_sequence_length")
    return int(limit)


def eos_token_ids_of(model: PreTrainedModel) -> tuple[int, ...]:
    """Tokens that end a turn, from the generation configuration or else from the model configuration."""
    for config in (model.generation_config, model.config.get_text_config()):
        eos = getattr(config, "eos_token_id", None)
        if eos is not None:
            return (eos,) if isinstance(eos, int) else tuple(eos)
    return ()
