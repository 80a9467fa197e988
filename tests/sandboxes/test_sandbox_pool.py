from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import pool as pool_module
from agentrl.sandboxes.base import RunResult, SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.pool import SandboxPool
from agentrl.sandboxes.settings import PoolSettings


class Fake:
    """A sandbox that counts; code "end" ends it, code "wait" waits until it is killed."""

    def __init__(self, provider: FakeProvider) -> None:
        self.provider, self.killed = provider, asyncio.Event()
        self.calls = 0

    async def run_python(self, code: str, deadline_s: float) -> RunResult:
        self.calls += 1
        await asyncio.sleep(0)
        if code == "wait":
            await self.killed.wait()
        if code == "end" or self.killed.is_set():
            raise SandboxEndedError("the code ended it")
        return RunResult(str(self.calls))

    async def kill(self) -> None:
        if not self.killed.is_set():
            self.killed.set()
            self.provider.running -= 1


class FakeProvider:
    def __init__(self, failing: int = 0) -> None:
        self.running = self.most = self.started = 0
        self.failing, self.closed = failing, False

    async def check(self) -> None:
        pass

    async def start(self) -> Fake:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise SandboxUnavailableError("no place")
        self.started += 1
        self.running += 1
        self.most = max(self.most, self.running)
        return Fake(self)

    async def close(self) -> None:
        self.closed = True


class PricedSettings(PoolSettings):
    @property
    def usd_per_s(self) -> float:
        return 0.5


def pool_with(provider: FakeProvider, max_running: int, **settings: object) -> SandboxPool:
    return SandboxPool(provider, PoolSettings(max_running=max_running, **settings))


async def settled() -> None:
    """Let everything go on that waits for no clock."""
    for _ in range(20):
        await asyncio.sleep(0)


async def call(pool: SandboxPool, owner: str, code: str = "") -> str:
    async with await pool.of(owner) as sandbox:
        return (await sandbox.run_python(code, 1)).output


def test_an_owner_keeps_its_sandbox_until_it_is_released():
    async def run():
        provider = FakeProvider()
        pool = pool_with(provider, 2)
        answers = [await call(pool, "a"), await call(pool, "b"), await call(pool, "a")]
        pool.release("a")
        answers.append(await call(pool, "a"))
        await pool.close()
        return answers, provider

    answers, provider = asyncio.run(run())
    assert answers == ["1", "1", "2", "1"]
    assert (provider.started, provider.running, provider.closed) == (3, 0, True)


@pytest.mark.parametrize("prewarm", [0, 3, 20])
def test_a_thousand_rollouts_share_eight_places(prewarm):
    async def rollout(pool, number, draw):
        try:
            for _ in range(draw.randrange(1, 4)):
                with suppress(SandboxEndedError):
                    await call(pool, number, draw.choice(["", "", "end"]))
        finally:
            pool.release(number)

    async def run():
        provider, draw = FakeProvider(), random.Random(0)
        pool = pool_with(provider, 8, prewarm=prewarm)
        tasks = [asyncio.create_task(rollout(pool, str(number), draw)) for number in range(1000)]
        for task in draw.sample(tasks, 50):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.close()
        return provider, pool.metrics(), [task for task in tasks if not task.cancelled() and task.exception()]

    provider, metrics, failed = asyncio.run(run())
    assert (provider.most, provider.running, failed) == (8, 0, [])
    assert metrics["sandboxes_started"] == provider.started >= 950
    assert 0 < metrics["sandboxes_ended"] < provider.started


def test_a_sandbox_that_ended_is_replaced_at_the_next_call():
    async def run():
        pool = pool_with(FakeProvider(), 1)
        assert await call(pool, "a") == "1"
        with pytest.raises(SandboxEndedError):
            await call(pool, "a", "end")
        return await call(pool, "a")

    assert asyncio.run(run()) == "1"


def test_a_failed_start_frees_its_place():
    async def run():
        pool = pool_with(FakeProvider(failing=3), 1)
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError):
                await call(pool, "a")
        return await call(pool, "a")

    assert asyncio.run(asyncio.wait_for(run(), 10)) == "1"


def test_a_release_ends_the_call_that_still_runs():
    async def run():
        pool = pool_with(FakeProvider(), 1)
        running = asyncio.create_task(call(pool, "a", "wait"))
        for _ in range(5):
            await asyncio.sleep(0)
        pool.release("a")
        with pytest.raises(SandboxEndedError):
            await running
        return await call(pool, "b")

    assert asyncio.run(asyncio.wait_for(run(), 10)) == "1"


def test_calls_of_one_owner_run_one_after_another():
    async def run():
        pool = pool_with(FakeProvider(), 4)
        return await asyncio.gather(*(call(pool, "a") for _ in range(5)))

    assert sorted(asyncio.run(run())) == ["1", "2", "3", "4", "5"]


def test_a_failed_check_is_raised_by_every_use():
    class Refusing(FakeProvider):
        async def check(self):
            raise ConfigError.keyless("not here")

    async def run():
        pool = pool_with(Refusing(), 1)
        for owner in "ab":
            with pytest.raises(ConfigError, match="not here"):
                await call(pool, owner)

    asyncio.run(run())


def test_sandboxes_are_started_ahead_and_replaced():
    async def run():
        provider = FakeProvider()
        pool = pool_with(provider, 8, prewarm=2)
        await pool.begin()
        await settled()
        seen = [provider.started]
        await call(pool, "a")
        await settled()
        seen.append(provider.started)
        await pool.close()
        return seen, provider.running

    assert asyncio.run(run()) == ([2, 3], 0)


def test_a_sandbox_that_is_started_ahead_goes_to_the_rollout_that_waits_for_its_place():
    async def run():
        provider = FakeProvider()
        pool = pool_with(provider, 1, prewarm=1)
        answers = []
        for owner in "abc":
            answers.append(await call(pool, owner))
            pool.release(owner)
        await pool.close()
        return answers, provider.most, provider.running

    assert asyncio.run(asyncio.wait_for(run(), 10)) == (["1"] * 3, 1, 0)


def test_failed_starts_ahead_leave_their_places(caplog):
    async def run():
        provider = FakeProvider(failing=2)
        pool = pool_with(provider, 2, prewarm=2)
        await pool.begin()
        await settled()
        answers = [await call(pool, "a"), await call(pool, "b")]
        metrics = pool.metrics()
        await pool.close()
        return answers, metrics["sandboxes_failed"], provider.running

    assert asyncio.run(asyncio.wait_for(run(), 10)) == (["1", "1"], 2, 0)
    assert "could not be started in advance: no place" in caplog.text


def test_a_sandbox_that_waited_too_long_is_replaced(monkeypatch):
    async def run():
        provider = FakeProvider()
        pool = pool_with(provider, 1, prewarm=1)
        await pool.begin()
        await settled()
        monkeypatch.setattr(pool_module, "MAX_IDLE_S", -1.0)
        await call(pool, "a")
        await pool.close()
        return provider.started, provider.most, provider.running

    assert asyncio.run(run()) == (2, 1, 0)


def test_a_sandbox_that_failed_is_replaced_at_the_next_call():
    async def run():
        provider = FakeProvider()
        pool = pool_with(provider, 1)
        with pytest.raises(SandboxUnavailableError):
            async with await pool.of("a"):
                raise SandboxUnavailableError("the service is down")
        answer = await call(pool, "a")
        metrics = pool.metrics()
        await pool.close()
        return answer, provider.started, metrics["sandboxes_failed"], metrics["sandboxes_ended"]

    assert asyncio.run(run()) == ("1", 2, 1, 0)


def test_a_sandbox_that_a_release_ends_did_not_end_by_its_code():
    async def run():
        pool = pool_with(FakeProvider(), 1)
        running = asyncio.create_task(call(pool, "a", "wait"))
        await settled()
        pool.release("a")
        await asyncio.gather(running, return_exceptions=True)
        await pool.close()
        return pool.metrics()

    assert asyncio.run(run())["sandboxes_ended"] == 0


def test_seconds_and_cost_include_sandboxes_that_run(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])

    async def run():
        free, priced = pool_with(FakeProvider(), 2), SandboxPool(FakeProvider(), PricedSettings())
        for pool in (free, priced):
            await call(pool, "a")
        now[0] += 4
        free.release("a")
        await free.close()
        now[0] += 6
        return free.metrics(), priced.metrics()

    free, priced = asyncio.run(run())
    assert (free["sandbox_s"], "sandbox_cost_usd" in free) == (4.0, False)
    assert (priced["sandbox_s"], priced["sandbox_cost_usd"]) == (10.0, 5.0)


def test_starts_wait_for_the_rate_that_processes_share(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    waited = []

    async def wait(self):
        waited.append(round(self.reserve()))

    monkeypatch.setattr("agentrl.sandboxes.start_rate.StartRate.wait", wait)

    async def run():
        pools = [pool_with(FakeProvider(), 4, starts_per_s=0.01) for _ in range(2)]
        for owner in "ab":
            for pool in pools:
                await call(pool, owner)

    asyncio.run(run())
    assert waited == [0, 100, 200, 300]
