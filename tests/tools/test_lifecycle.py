"""Whatever tools and rollouts do, what was created is released, once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_builders import Recorder, call, task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools import lifecycle, toolbox
from agentrl.tools.base import ToolError, ToolResponse
from agentrl.tools.toolbox import Toolbox
from agentrl.trajectory import Outcome

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
