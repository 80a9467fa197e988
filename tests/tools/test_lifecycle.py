"""Whatever tools and rollouts do, what was created is released, once."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_builders import Recorder, call, task, until

from agentrl.attempt import Outcome
from agentrl.config.rollout import MultiTurnConfig
from agentrl.offload import run
from agentrl.tools import lifecycle, toolbox
from agentrl.tools.base import ToolError, ToolResponse
from agentrl.tools.toolbox import Toolbox

FAULTS = ["fine", "fine", "raises", "tool_error", "hangs", "yields"]


class Scripted(Recorder):
    """Each method does what the script says next."""

    def __init__(self, script):
        super().__init__()
        self._script = iter(script)

    async def _misbehave(self):
        fault = next(self._script, "fine")
        if fault == "raises":
            raise OSError(fault)
        if fault == "tool_error":
            raise ToolError(fault)
        await asyncio.sleep({"hangs": 60, "yields": 0.0005}.get(fault, 0))

    async def create(self, instance_id=None, **kwargs):
        await self._misbehave()
        self.created.append(instance_id)
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        assert instance_id in self.created
        assert instance_id not in self.released
        await self._misbehave()
        return await super().execute(instance_id, parameters)

    async def release(self, instance_id, **kwargs):
        self.released.append(instance_id)
        await self._misbehave()


@pytest.fixture(autouse=True)
def short_releases(monkeypatch):
    for module in (lifecycle, toolbox):
        monkeypatch.setattr(module, "RELEASE_TIMEOUT_S", 0.004)


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.sampled_from(FAULTS), max_size=12),
    num_calls=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    cancel_after_s=st.none() | st.floats(0, 0.006),
    parallel=st.booleans(),
)
def test_created_and_released_balance(script, num_calls, cancel_after_s, parallel):
    tool = Scripted(script)
    outcomes = []

    async def rollout(box, number):
        async with box.session(task()) as session:
            calls = [session.call(call("recorder")) for _ in range(number)]
            if parallel:
                outcomes.extend(result.outcome for result in await asyncio.gather(*calls))
                return
            for each in calls:
                outcomes.append((await each).outcome)

    async def main():
        box = Toolbox([tool], MultiTurnConfig(tool_timeout_s=0.004))
        rollouts = [asyncio.create_task(rollout(box, number)) for number in num_calls]
        await asyncio.wait(rollouts, timeout=cancel_after_s)
        for each in rollouts:
            each.cancel()
        await asyncio.wait(rollouts)
        await box.close()  # waits for releases that a cancellation left under way

    # a cancelled rollout leaves calls that were never awaited
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        asyncio.run(main())
    assert sorted(tool.created) == sorted(tool.released)
    assert set(outcomes) <= {Outcome.OK, Outcome.TOOL_ERROR, Outcome.TIMEOUT}


def test_what_a_blocked_loop_was_creating_is_released_and_made_anew(monkeypatch):
    """The first `create` blocks its loop; the next call creates on the new one; both instances are released, once."""
    gate = threading.Event()

    class Blocking(Recorder):
        async def create(self, instance_id=None, **kwargs):
            if not self.created:
                self.created.append(instance_id)
                gate.wait(10)  # the mistake under test
                return instance_id, ToolResponse()
            return await super().create(instance_id, **kwargs)

    monkeypatch.setattr(run, "GRACE_S", 0.05)
    tool = Blocking()

    async def main():
        box = Toolbox([tool], MultiTurnConfig(tool_timeout_s=0.05))
        async with box.session(task()) as session:
            blocked = await session.call(call("recorder"))
            box.tools["recorder"].deadline_s = 5.0
            served = [await session.call(call("recorder")) for _ in range(2)]
            gate.set()
            await until(lambda: tool.released == tool.created[:1])
        await box.close()
        return blocked.outcome, [result.outcome for result in served]

    assert asyncio.run(main()) == (Outcome.TIMEOUT, [Outcome.OK] * 2)
    assert tool.released == tool.created
    assert len(tool.created) == 2


def test_releases_go_on_however_many_hung():
    class Hanging(Recorder):
        async def release(self, instance_id, **kwargs):
            self.released.append(instance_id)
            while not gate:
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue  # the mistake under test

    gate, tool = [], Hanging()

    async def rollout(box):
        async with box.session(task()) as session:
            await session.call(call("recorder"))

    async def main():
        box = Toolbox([tool])
        await asyncio.gather(*(rollout(box) for _ in range(20)))
        await rollout(box)
        gate.append(True)
        await box.close()

    asyncio.run(main())
    assert len(tool.released) == 21
