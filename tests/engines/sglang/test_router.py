"""A real sglang-router in front of servers: it routes generation by conversation; control requests bypass it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from contextlib import asynccontextmanager, suppress

import pytest
from sglang_subjects import WEIGHTS, ask, fake_servers, open_fake_engine

from agentrl.engines.base import FinishReason
from agentrl.engines.sglang.client import ServerClient, ServerError
from agentrl.types.trajectory import VersionSpan
from agentrl.utils.network import free_port

pytestmark = [pytest.mark.slow, pytest.mark.sglang]


@asynccontextmanager
async def router_before(urls, log):
    """Address of a router that routes conversations by their routing key."""
    from sglang_server import require_sglang

    require_sglang()
    assert importlib.util.find_spec("sglang_router"), "make sglang installs it"
    port = free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    options = ["--policy", "manual", "--assignment-mode", "min_load", "--prometheus-port", str(free_port())]
    options += ["--worker-startup-check-interval", "1"]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, *options, "--worker-urls", *urls, stdout=output, stderr=output, env={**os.environ}
        )
    client = ServerClient(f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(90):
            await _ready(client, len(urls))
        yield client.url
    finally:
        await client.close()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _ready(client: ServerClient, num_workers: int) -> None:
    while True:
        with suppress(ServerError):
            workers = (await client.get("/workers"))["workers"]
            if sum(worker["is_healthy"] for worker in workers) == num_workers:
                return
        await asyncio.sleep(0.1)


@asynccontextmanager
async def routed_engine(tmp_path, token_s=0.0005, **options):
    """An engine that generates through a router; the two servers behind the router are fake."""
    servers = await fake_servers(2, token_s)
    async with (
        router_before([server.url for server in servers], tmp_path / "router.log") as url,
        open_fake_engine(servers=servers, router=ServerClient(url), timeout_s=120, **options) as engine,
    ):
        yield engine


def test_a_router_keeps_conversations_in_their_place(tmp_path):
    async def run():
        async with routed_engine(tmp_path) as engine:
            for turn in range(3):
                await asyncio.gather(*[engine.generate(ask([3 + i] * (4 + turn), f"s{i}")) for i in range(8)])
            asked = [{body["input_ids"][0] for body in server.requests} for server in engine.servers]
            return asked, engine.metrics()

    asked, metrics = asyncio.run(run())
    assert asked[0].isdisjoint(asked[1])
    assert asked[0]
    assert asked[1]
    assert metrics["later_cached_share"] > 0.8


def test_control_requests_bypass_the_router(tmp_path):
    async def run():
        async with routed_engine(tmp_path, token_s=0.005) as engine:
            work = [asyncio.create_task(engine.generate(ask([4, i], f"s{i}", max_new_tokens=40))) for i in range(6)]
            await asyncio.sleep(0.1)
            await engine.load_weights(iter(WEIGHTS), 3)
            late = await engine.generate(ask(deadline_s=0.15, max_new_tokens=200))
            return await asyncio.gather(*work), late

    completions, late = asyncio.run(run())
    assert {completion.policy_versions[-1] for completion in completions} <= {VersionSpan(3, n) for n in range(1, 41)}
    assert late.finish_reason is FinishReason.ABORT
    assert 0 < len(late.token_ids) < 200


def test_worker_death_behind_a_router_loses_no_rollout(tmp_path):
    async def run():
        async with routed_engine(tmp_path, processes=True, token_s=0.005) as engine:
            work = [asyncio.create_task(engine.generate(ask([4, i], f"s{i}", max_new_tokens=60))) for i in range(10)]
            await asyncio.sleep(0.1)
            await engine.servers[0].die()
            return await asyncio.gather(*work), engine.metrics()

    completions, metrics = asyncio.run(run())
    assert [len(completion.token_ids) for completion in completions] == [60] * 10
    assert metrics["sampled_tokens"] == 600


def test_a_real_server_behind_a_router(sglang_server, sglang_model, tmp_path):
    from test_real_engine import opened, reference_logprobs

    async def run():
        async with (
            router_before([sglang_server.url], tmp_path / "router.log") as url,
            opened(sglang_model, tmp_path, urls=[sglang_server.url], router_url=url) as engine,
        ):
            first = await engine.generate(ask([5, 6, 7], "a"))
            later = await engine.generate(ask([5, 6, 7, *first.token_ids, 4], "a"))
            late = ask([5, 6, 7], temperature=0.0, max_new_tokens=230, deadline_s=0.2)
            await engine.pause("in_place")  # so that the deadline cannot be met
            cut = await engine.generate(late)
            await engine.resume()
            return first, later, cut

    first, later, cut = asyncio.run(run())
    assert later.num_cached_tokens >= 3 + len(first.token_ids) - 1
    assert cut.finish_reason is FinishReason.ABORT
    assert list(first.logprobs) == pytest.approx(reference_logprobs([5, 6, 7], list(first.token_ids), 1.0), abs=1e-5)
