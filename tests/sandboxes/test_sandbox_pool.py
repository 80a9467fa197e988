from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import RunResult, SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.pool import SandboxPool


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
        self.failing = failing

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


async def call(pool: SandboxPool, owner: str, code: str = "") -> str:
    async with await pool.of(owner) as sandbox:
        return (await sandbox.run_python(code, 1)).output


def test_an_owner_keeps_its_sandbox_until_it_is_released():
    async def run():
        provider = FakeProvider()
        pool = SandboxPool(provider, 2)
        answers = [await call(pool, "a"), await call(pool, "b"), await call(pool, "a")]
        pool.release("a")
        answers.append(await call(pool, "a"))
        await pool.close()
        return answers, provider

    answers, provider = asyncio.run(run())
    assert answers == ["1", "1", "2", "1"]
    assert (provider.started, provider.running, provider.closed) == (3, 0, True)


def test_a_thousand_rollouts_share_eight_places():
    async def rollout(pool, number, draw):
        try:
            for _ in range(draw.randrange(1, 4)):
                with suppress(SandboxEndedError):
                    await call(pool, number, draw.choice(["", "", "end"]))
        finally:
            pool.release(number)

    async def run():
        provider, draw = FakeProvider(), random.Random(0)
        pool = SandboxPool(provider, 8)
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
        pool = SandboxPool(FakeProvider(), 1)
        assert await call(pool, "a") == "1"
        with pytest.raises(SandboxEndedError):
            await call(pool, "a", "end")
        return await call(pool, "a")

    assert asyncio.run(run()) == "1"


def test_a_failed_start_frees_its_place():
    async def run():
        pool = SandboxPool(FakeProvider(failing=3), 1)
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError):
                await call(pool, "a")
        return await call(pool, "a")

    assert asyncio.run(asyncio.wait_for(run(), 10)) == "1"


def test_a_release_ends_the_call_that_still_runs():
    async def run():
        pool = SandboxPool(FakeProvider(), 1)
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
        pool = SandboxPool(FakeProvider(), 4)
        return await asyncio.gather(*(call(pool, "a") for _ in range(5)))

    assert sorted(asyncio.run(run())) == ["1", "2", "3", "4", "5"]


def test_a_failed_check_is_raised_by_every_use():
    class Refusing(FakeProvider):
        async def check(self):
            raise ConfigError.keyless("not here")

    async def run():
        pool = SandboxPool(Refusing(), 1)
        for owner in "ab":
            with pytest.raises(ConfigError, match="not here"):
                await call(pool, owner)

    asyncio.run(run())
