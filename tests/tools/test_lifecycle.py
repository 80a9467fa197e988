"""Every created tool instance is released exactly once, in any order of calls, failures and cancellations."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_builders import Recorder, call, run_calls, schema, task, until

from agentrl.concurrency import run
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import DataError
from agentrl.tools import class_tool as lifecycle
from agentrl.tools import toolbox
from agentrl.tools.base import BaseTool, ToolError, ToolResponse
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome

FAULTS = ["fine", "fine", "raises", "tool_error", "hangs", "yields"]


class Scripted(Recorder):
    """Each method runs the next action of the script."""

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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=st.lists(st.sampled_from(FAULTS), max_size=12),
    num_calls=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    cancel_after_s=st.none() | st.floats(0, 0.006),
    parallel=st.booleans(),
)
def test_each_created_instance_is_released(script, num_calls, cancel_after_s, parallel):
    tool = Scripted(script)
    outcomes = []

    async def one(session):
        try:
            outcomes.append((await session.call(call("recorder"))).outcome)
        except DataError:  # a `create` that raises is an error of the row
            outcomes.append(Outcome.TOOL_ERROR)

    async def rollout(box, number):
        async with box.session(task()) as session:
            calls = [one(session) for _ in range(number)]
            if parallel:
                await asyncio.gather(*calls)
                return
            for each in calls:
                await each

    async def main():
        box = Toolbox([tool], MultiTurnConfig(tool_timeout_s=0.004))
        rollouts = [asyncio.create_task(rollout(box, number)) for number in num_calls]
        await asyncio.wait(rollouts, timeout=cancel_after_s)
        for each in rollouts:
            each.cancel()
        await asyncio.wait(rollouts)
        await box.close()  # waits for releases that a cancellation left running

    # a cancelled rollout leaves coroutines that were never awaited
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        asyncio.run(main())
    assert sorted(tool.created) == sorted(tool.released)
    assert set(outcomes) <= {Outcome.OK, Outcome.TOOL_ERROR, Outcome.TIMEOUT, Outcome.INFRA_ERROR}


def test_an_instance_of_a_blocked_loop_is_released_and_recreated(monkeypatch):
    """The first `create` blocks its loop; the next call creates on a new loop; both instances are released once."""
    gate = threading.Event()

    class Blocking(Recorder):
        async def create(self, instance_id=None, **kwargs):
            if not self.created:
                self.created.append(instance_id)
                gate.wait(10)  # the bug under test
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

    assert asyncio.run(main()) == (Outcome.INFRA_ERROR, [Outcome.OK] * 2)
    assert tool.released == tool.created
    assert len(tool.created) == 2


@pytest.mark.slow
def test_releases_continue_after_hanging_ones():
    class Hanging(Recorder):
        async def release(self, instance_id, **kwargs):
            self.released.append(instance_id)
            while not gate:
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue  # the bug under test

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


class Shelf(Recorder):
    async def create(self, instance_id=None, *, shelf, aisle=1, **_):
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, limit=3):
        return ToolResponse("here"), 0.0, {}


class Exact(Recorder):
    async def create(self, instance_id, shelf="A"):
        return instance_id, ToolResponse()


class Whole(Recorder):
    async def create(self, instance_id, create_kwargs):
        return instance_id, ToolResponse()


@pytest.mark.parametrize(
    ("tool", "arguments", "complaint"),
    [
        (Shelf, {}, "create_kwargs': create of tool 'recorder' needs 'shelf', which the row does not have"),
        (Shelf, {"create_kwargs": {"shelv": "A"}}, "needs 'shelf'"),
        (Shelf, {"create_kwargs": "A"}, "field 'tools_kwargs.recorder.create_kwargs': expected an object, got 'A'"),
        (Shelf, {"create_kwarg": {}}, "unknown key 'create_kwarg': did you mean 'create_kwargs'?"),
        (
            Shelf,
            {"create_kwargs": {"shelf": 1}, "execute_kwargs": {"limits": 1}},
            "does not accept 'limits': did you mean",
        ),
        (Exact, {"create_kwargs": {"shelve": "B"}}, "does not accept 'shelve': did you mean 'shelf'?"),
        (Shelf, {"create_kwargs": {"shelf": "B", "more": 1}}, None),
        (Whole, {"create_kwargs": {"anything": 1}, "execute_kwargs": None}, None),
        (Exact, {}, None),
    ],
)
def test_a_rows_tool_arguments_are_checked_against_the_methods(tool, arguments, complaint):
    box = Toolbox([tool()])
    if complaint is None:
        box.check(task(tools_kwargs={"recorder": arguments}))
        return
    with pytest.raises(DataError) as caught:
        box.check(task(tools_kwargs={"recorder": arguments} if arguments else {}))
    assert complaint in str(caught.value)
    box.check(task(tools_kwargs={}, extra_info={"tool_selection": []}))  # a row that does not offer the tool


class Shelves(BaseTool):
    """One of two tools that share the taken items, by the rollout's `request_id`."""

    taken: dict[str, list[str]]

    def __init__(self, name, taken):
        self.tool_schema = schema(name)
        super().__init__({})
        self.taken, self.seen = taken, []

    async def create(self, instance_id=None, *, agent_data, **kwargs):
        self.seen.append((agent_data.request_id, sorted(kwargs)))
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, agent_data, **kwargs):
        mine = self.taken.setdefault(agent_data.request_id, [])
        mine.append(self.name)
        return ToolResponse(" ".join(mine)), 0.0, {}

    async def calc_reward(self, instance_id, agent_data, **kwargs):
        return float(len(self.taken[agent_data.request_id]))

    async def release(self, instance_id, **kwargs):
        self.taken.pop(kwargs["agent_data"].request_id, None)


def test_two_tools_share_the_state_of_a_rollout_and_release_it():
    taken = {}
    take, put = Shelves("take", taken), Shelves("put", taken)
    results, session = run_calls([take, put], call("take"), call("put"), call("take"))
    assert [result.text for result in results] == ["take", "take put", "take put take"]
    assert session.rewards == {"take": 3.0, "put": 3.0}
    assert taken == {}
    assert [*take.seen, *put.seen] == [(session.data.request_id, ["create_kwargs"])] * 2


@pytest.mark.parametrize("text", ["the shelf is empty", "Error: the shelf is empty"])
def test_the_model_reads_the_text_of_a_tool_error_after_one_prefix(text):
    def take() -> str:
        """Take."""
        raise ToolError(text)

    ((result,), _) = run_calls([take], call("take"))
    assert (result.text, result.outcome) == ("Error: the shelf is empty", Outcome.TOOL_ERROR)
