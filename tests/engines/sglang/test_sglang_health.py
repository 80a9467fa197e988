"""Health monitoring of replicas, without an engine."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch
from fake_server import FakeProcess
from sglang_subjects import SHAPES, WEIGHTS, fake_servers

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.health import HealthMonitor
from agentrl.engines.sglang.replica import Health
from agentrl.engines.sglang.weights.tensor import TensorTransfer


@asynccontextmanager
async def monitored(number: int = 1, processes: bool = True, **options):
    """A health monitor, its servers and replicas, and the list of lost replicas."""
    servers, lost = await fake_servers(number), []
    replicas = [await server.replica(FakeProcess(server) if processes else None) for server in servers]
    transfer = TensorTransfer(SHAPES, torch.float32, 1 << 20)
    options = {"health_timeout_s": 0.09, **options}
    monitor = HealthMonitor(replicas, transfer, lost.append, lambda: None, **options)
    monitor.begin()
    try:
        async with asyncio.timeout(10):
            yield monitor, servers, replicas, lost, transfer
    finally:
        await monitor.close()
        await asyncio.gather(*(replica.leave() for replica in replicas), *(server.die() for server in servers))


PATIENT_S = 0.9
"""Timeout of servers that must not count as lost, on a busy machine. They are polled three times as often."""


def polls(server) -> int:
    """Number of health checks of a server."""
    return server.calls.count("/server_info")


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110  # what changes has no event of its own
        await asyncio.sleep(0.005)


@pytest.mark.slow
def test_healthy_server_is_not_restarted():
    async def run():
        async with monitored(health_timeout_s=PATIENT_S) as (_, servers, replicas, lost, _):
            began, before = asyncio.get_running_loop().time(), polls(servers[0])
            await until(lambda: polls(servers[0]) >= before + 3)
            return asyncio.get_running_loop().time() - began, replicas[0].health, lost

    seconds, health, lost = asyncio.run(run())
    assert seconds > 1.9 * PATIENT_S / 3  # it polls at intervals, without a busy loop
    assert (health, lost) == (Health.READY, [])


@pytest.mark.slow
def test_paused_server_is_healthy():
    async def run():
        async with monitored(health_timeout_s=PATIENT_S) as (_, servers, _, lost, _):
            servers[0].paused, before = True, polls(servers[0])
            await until(lambda: polls(servers[0]) >= before + 2)
            return lost

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_restarted_server_gets_the_last_sent_weights(how):
    async def run():
        async with monitored(2, health_timeout_s=0.4) as (monitor, servers, replicas, lost, transfer):
            await transfer.send(replicas, iter(WEIGHTS), 3)
            replicas[0].process.may_restart.clear()  # it must not return before `ready` is called
            if how == "dies":
                await servers[0].die()
            else:
                servers[0].hung = True
            await until(lambda: lost)
            ready = await monitor.ready()
            replicas[0].process.may_restart.set()
            await until(lambda: replicas[0].health is Health.READY)
            return lost == [replicas[0]], ready == [replicas[1]], servers[0].version, replicas[0].num_restarts

    assert asyncio.run(run()) == (True, True, "3", 1)


def test_suspect_replica_that_answers_returns_immediately():
    async def run():
        async with monitored(health_timeout_s=30) as (monitor, _, replicas, lost, _):
            monitor.suspect(replicas[0], "a connection broke")
            suspected = replicas[0].health
            await until(lambda: replicas[0].health is Health.READY)
            return suspected, lost

    assert asyncio.run(run()) == (Health.SUSPECT, [])


def test_server_marked_for_restart_is_restarted_although_it_answers():
    async def run():
        async with monitored() as (monitor, _, replicas, _, _):
            monitor.take_out(replicas, "mixed weights")
            await until(lambda: replicas[0].health is Health.READY)
            return replicas[0].num_restarts

    assert asyncio.run(run()) == 1


def test_an_external_server_that_missed_the_end_of_a_pause_continues():
    async def run():
        async with monitored(processes=False) as (_, servers, replicas, lost, _):
            servers[0].hung = servers[0].paused = True
            await until(lambda: lost)
            servers[0].hung, servers[0].version = False, "default"  # or it was restarted meanwhile
            await until(lambda: replicas[0].health is Health.READY)
            return servers[0].paused, servers[0].version

    assert asyncio.run(run()) == (False, "0")


@pytest.mark.slow
def test_a_run_does_not_wait_forever_for_external_servers():
    async def run():
        async with monitored(2, processes=False, start_timeout_s=0.3) as (monitor, servers, _, lost, _):
            await servers[0].die()
            await until(lambda: lost)
            await asyncio.sleep(0.5)
            failure = monitor.failure  # the other replica serves
            await servers[1].die()
            await until(lambda: len(lost) == 2)
            with pytest.raises(ServerError, match=r"no SGLang server has been in service for 0.3 s .*start_timeout_s"):
                await monitor.ready()
            return failure

    assert asyncio.run(run()) is None


@pytest.mark.slow
def test_no_health_checks_run_while_weights_are_sent():
    async def run():
        async with monitored(health_timeout_s=PATIENT_S) as (monitor, servers, _, lost, _):
            async with monitor.weights:
                servers[0].hung, before = True, polls(servers[0])  # busy loading weights
                await asyncio.sleep(1.2 * PATIENT_S)
                assert polls(servers[0]) <= before + 1  # a check may have begun
                servers[0].hung = False
            await until(lambda: polls(servers[0]) >= before + 2)
            return lost

    assert asyncio.run(run()) == []


def test_a_server_may_come_back_at_another_address():
    async def run():
        async with monitored() as (_, servers, replicas, _, _):
            before = servers[0].url
            await servers[0].die()
            servers[0].url = ""  # the restart takes another port
            await until(lambda: replicas[0].health is Health.READY and replicas[0].client.url != before)
            return replicas[0].client.url == servers[0].url

    assert asyncio.run(run())


def test_reason_is_reported_after_the_last_restart():
    async def run():
        async with monitored(max_restarts=1) as (monitor, servers, replicas, lost, _):
            for number in (1, 2):
                await until(lambda: replicas[0].health is Health.READY)
                await servers[0].die()
                await until(lambda number=number: len(lost) == number)
            with pytest.raises(ServerError) as raised:
                await monitor.ready()
            return str(raised.value)

    told = asyncio.run(run())
    for part in ("http://127.0.0.1", "replica-0.log", "restarted 1 times", "its process ended"):
        assert part in told


def test_an_internal_error_reaches_the_waiting_callers():
    async def run():
        async with monitored() as (monitor, servers, replicas, _, transfer):
            transfer.refresh = None  # a bug of ours
            await servers[0].die()
            await until(lambda: replicas[0].health is not Health.READY)
            await monitor.ready()

    with pytest.raises(TypeError):
        asyncio.run(run())
