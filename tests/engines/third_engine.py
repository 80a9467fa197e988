"""A third engine, in one file: it runs a `transformers` model for one token of one request at a time.

Select it with `rollout.engine=tests/engines/third_engine.py:SPEC`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import groupby

import torch
from transformers import PreTrainedModel

from agentrl.capabilities import EngineSpec
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.engines.base import (
    COUNTERS,
    Completion,
    FinishReason,
    GenerateRequest,
    PauseMode,
    WeightStream,
    check_context,
    check_sampling,
)
from agentrl.models.loading import load_model
from agentrl.models.weights_in_place import load_in_place
from agentrl.types.trajectory import VersionSpan
from agentrl.utils.seeds import derive_seed


class Job:
    """A request with the tokens sampled so far."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.cache, self.cache_version = None, -1
        self.aborted = False

    def completion(self, reason: FinishReason) -> Completion:
        spans = [VersionSpan(version, len(list(same))) for version, same in groupby(self.versions)]
        return Completion(self.token_ids, self.logprobs, spans, reason)


class PlainEngine:
    """A minimal `Engine`. It computes on the event loop, so no other code runs while it computes a token."""

    def __init__(self, model: PreTrainedModel, max_sequence_length: int) -> None:
        self.model, self._max_sequence_length = model.eval().requires_grad_(False), max_sequence_length
        self._version, self._counters = 0, Counter()
        self._running: set[Job] = set()
        self._admits, self._computes = asyncio.Event(), asyncio.Event()
        self._idle = asyncio.Event()
        for event in (self._admits, self._computes, self._idle):
            event.set()
        self._closed = False

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.images:
            raise ValueError("the plain engine reads no images")
        check_context(request.token_ids, self.model.config.vocab_size, self._max_sequence_length)
        check_sampling(request.sampling)
        job = Job(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(request.deadline_s):
                return await self._admitted(job)
        return job.completion(FinishReason.ABORT)

    async def _admitted(self, job: Job) -> Completion:
        await self._admits.wait()
        self._running.add(job)
        self._idle.clear()
        self._counters["prompt_tokens"] += len(job.request.token_ids)
        try:
            return job.completion(await self._sampled(job))
        finally:
            self._running.discard(job)
            if not self._running:
                self._idle.set()

    async def _sampled(self, job: Job) -> FinishReason:
        sampling, room = job.request.sampling, self._max_sequence_length - len(job.request.token_ids)
        ends = {*sampling.stop_token_ids, self.model.config.eos_token_id}
        for _ in range(min(room, sampling.max_new_tokens or room)):
            await asyncio.sleep(0)
            await self._computes.wait()
            if job.aborted or self._closed:
                return FinishReason.ABORT
            self._sample(job)
            if job.token_ids[-1] in ends:
                return FinishReason.STOP
        return FinishReason.LENGTH

    @torch.inference_mode()
    def _sample(self, job: Job) -> None:
        new = [*job.request.token_ids, *job.token_ids] if job.cache_version != self._version else job.token_ids[-1:]
        cache = job.cache if job.cache_version == self._version else None
        output = self.model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        job.cache, job.cache_version = output.past_key_values, self._version
        sampling = job.request.sampling
        logprobs = (output.logits[0, -1] / (sampling.temperature or 1.0)).log_softmax(-1)
        token_id = int(logprobs.argmax())
        if sampling.temperature:
            draw = torch.Generator().manual_seed(derive_seed(sampling.seed or 0, len(job.token_ids)))
            token_id = int(torch.multinomial(logprobs.exp(), 1, generator=draw))
        job.token_ids.append(token_id)
        job.logprobs.append(float(logprobs[token_id]))
        job.versions.append(self._version)
        self._counters.update(sampled_tokens=1, forwarded_tokens=len(new), decode_steps=1)

    async def load_weights(self, weights: WeightStream, version: int) -> None:
        load_in_place(self.model, weights)
        self._version = version

    async def pause(self, mode: PauseMode = "drain") -> None:
        self._admits.clear()
        if mode != "drain":
            self._computes.clear()
        if mode == "drain":
            await self._idle.wait()

    async def resume(self) -> None:
        self._admits.set()
        self._computes.set()

    async def abort(self, session: str) -> None:
        for job in self._running:
            job.aborted |= job.request.session == session

    async def release(self, session: str) -> None:
        pass  # no KV outlives a request

    async def close(self) -> None:
        self._closed = True
        await self.resume()

    def metrics(self) -> dict[str, float]:
        return {name: float(self._counters[name]) for name in COUNTERS}


async def load(config: RunConfig, chat: ChatFormat) -> PlainEngine:
    model = load_model(config.model, torch.device("cpu"))
    return PlainEngine(model, config.data.max_sequence_length)


SPEC = EngineSpec(load=load, deterministic=True)
