"""Engines on fake servers, and short requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import torch
from fake_server import MAX_INPUT_TOKENS, VOCABULARY, FakeProcess, FakeServer

from agentrl.engines.base import GenerateRequest, SamplingParams
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.requests import Terms
from agentrl.engines.sglang.weights.tensor import TensorTransfer

WEIGHTS = [("model.embed_tokens.weight", torch.ones(4, 4)), ("model.norm.weight", torch.ones(4))]
SHAPES = {name: tuple(tensor.shape) for name, tensor in WEIGHTS}
TERMS = Terms(VOCABULARY, max_sequence_length=256, max_input_tokens=MAX_INPUT_TOKENS)


class FakeEngine(SglangEngine):
    """Also closes its fake servers."""

    servers: Sequence[FakeServer]

    async def close(self) -> None:
        await super().close()
        for server in self.servers:
            await server.die()


async def fake_servers(number: int, token_s: float = 0.0005) -> list[FakeServer]:
    return [await FakeServer(token_s).start() for _ in range(number)]


async def fake_engine(
    num_replicas: int = 1,
    processes: bool = False,
    token_s: float = 0.0005,
    servers: Sequence[FakeServer] = (),
    **options,
) -> FakeEngine:
    """An engine on fake servers, new ones unless some are given. With `processes` the engine may restart them."""
    servers = servers or await fake_servers(num_replicas, token_s)
    replicas = [await server.replica(FakeProcess(server) if processes else None) for server in servers]
    options = {"health_timeout_s": 0.6, **options}
    engine = FakeEngine(replicas, TensorTransfer(SHAPES, torch.float32, 1 << 20), TERMS, **options)
    engine.servers = servers
    return engine


@asynccontextmanager
async def open_fake_engine(*args, timeout_s: float = 20, **options) -> AsyncIterator[FakeEngine]:
    engine = await fake_engine(*args, **options)
    try:
        async with asyncio.timeout(timeout_s):
            yield engine
    finally:
        await engine.close()


def ask(token_ids: Sequence[int] = (5, 6, 7), session: str = "", deadline_s: float | None = None, **sampling: object):
    return GenerateRequest(token_ids, SamplingParams(**{"max_new_tokens": 8, **sampling}), session, deadline_s)
