from __future__ import annotations

import asyncio
import logging
import time

import pytest
from tool_builders import Recorder, call, run_calls, schema, task, until

from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.errors import ConfigError, DataError
from agentrl.tools import class_tool as lifecycle
from agentrl.tools import tool, toolbox
from agentrl.tools.base import BaseTool, InfraError, ToolError, ToolResponse
from agentrl.tools.calculator import calculator
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome

QUICK = MultiTurnConfig(tool_timeout_s=0.05)


def one(tool, *, config=None, **arguments):
    """The result of one call."""
    box = Toolbox([tool], config)
    return run_calls([tool], call(next(iter(box.tools)), **arguments), multi_turn=config)[0][0]


def test_a_call_is_answered():
    result = one(calculator, expression="(37*41)+19")
    assert (result.text, result.outcome, result.reward) == ("1536", Outcome.OK, 0.0)
    assert 0 < result.duration_s < 5


@pytest.mark.parametrize(
    ("parsed", "text"),
    [
        (ParsedCall("", "", error="the call is not closed"), "the call is not closed"),
        (ParsedCall("calculatr", "{}"), "no tool 'calculatr': did you mean 'calculator'?"),
        (ParsedCall("calculator", "{"), "not valid JSON"),
        (ParsedCall("calculator", '{"expression": 1}'), "'expression' must be string, not 1"),
        (ParsedCall("calculator", '{"expression": "1", "more": 1}'), "'more'"),
    ],
)
def test_the_model_is_informed_of_its_mistakes(parsed, text):
    (result,), _ = run_calls([calculator], parsed)
    assert result.outcome is Outcome.FORMAT_ERROR
    assert text in result.text


class StrangeError(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (ToolError("no such page"), Outcome.TOOL_ERROR, "Error: no such page"),
        (InfraError("service is down"), Outcome.INFRA_ERROR, "Error: InfraError: service is down"),
        (KeyError("k"), Outcome.TOOL_ERROR, "Error: KeyError: 'k'"),
        (TimeoutError("its own"), Outcome.TOOL_ERROR, "Error: TimeoutError: its own"),
        (SystemExit(2), Outcome.TOOL_ERROR, "Error: RuntimeError: SystemExit: 2"),
        (KeyboardInterrupt(), Outcome.TOOL_ERROR, "Error: RuntimeError: KeyboardInterrupt: "),
        (asyncio.CancelledError(), Outcome.TOOL_ERROR, None),
        (StrangeError(), Outcome.TOOL_ERROR, "Error: StrangeError"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_exception_is_an_outcome(error, outcome, text, is_async):
    def plain() -> str:
        raise error

    async def waiting() -> str:
        raise error

    result = one(waiting if is_async else plain)
    assert result.outcome is outcome
    assert text is None or result.text == text


def test_a_failing_tool_is_logged_once(caplog):
    def broken() -> str:
        raise KeyError("k")

    with caplog.at_level(logging.WARNING):
        run_calls([broken], *[call("broken")] * 3)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("calling broken failed (reported once): KeyError: 'k'; the outcome is tool_error")
    assert "raise ToolError" in said
    assert "InfraError if" in said


def test_the_hint_is_only_for_untyped_exceptions(caplog):
    def down() -> str:
        raise InfraError("no answer")

    with caplog.at_level(logging.WARNING):
        one(down)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "calling down failed (reported once): InfraError: no answer"


def test_mistake_of_the_user_ends_the_run():
    def strict() -> str:
        raise DataError("row without a key")

    with pytest.raises(DataError, match="row without a key"):
        one(strict)


@pytest.mark.parametrize("returned", [None, b"text", 3, {"a": 1}, [1]])
def test_unusual_return_values_become_text(returned):
    def odd() -> object:
        return returned

    assert one(odd).outcome is Outcome.OK


def test_undecodable_bytes_are_a_tool_error():
    def image() -> bytes:
        return b"\x89PNG\xff"

    assert one(image).outcome is Outcome.TOOL_ERROR


def test_output_flood_is_bounded():
    def flood() -> str:
        return "a" * 10_000_000

    assert len(one(flood).text) == 20_000


def test_execute_that_returns_nothing_useful():
    class Silent(Recorder):
        async def execute(self, instance_id, parameters, **kwargs):
            return None

    assert one(Silent()).outcome is Outcome.OK


def test_plain_function_may_return_a_coroutine():
    async def inner():
        return "x"

    def outer() -> str:
        return inner()

    result = one(outer)
    assert (result.outcome, "async def" in result.text) == (Outcome.TOOL_ERROR, True)


# hanging calls


def test_a_hanging_coroutine_is_cancelled_at_its_deadline():
    cancelled = []

    async def hangs() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    result = one(hangs, config=QUICK)
    assert (result.outcome, cancelled) == (Outcome.TIMEOUT, [True])
    assert result.text == "Error: no answer within 0.05 seconds"
    assert result.duration_s < 1


def test_hanging_threads_are_abandoned_counted_and_limited():
    async def main():
        gate = []

        def hangs() -> str:
            while not gate:
                time.sleep(0.001)
            return "late"

        box = Toolbox([hangs, calculator])
        box.tools["hangs"].deadline_s = 0.002
        box.tools["hangs"].breaker.max_abandoned = 3
        async with box.session(task()) as session:
            outcomes = [(await session.call(call("hangs"))).outcome for _ in range(4)]
            other = await session.call(call("calculator", expression="1"))
            hanging = box.metrics()["abandoned_calls"]
            gate.append(True)
            box.tools["hangs"].deadline_s = 5.0
            await until(lambda: not box.metrics()["abandoned_calls"])
            again = await session.call(call("hangs"))
        await box.close()
        return outcomes, other.outcome, hanging, again.outcome

    outcomes, other, hanging, again = asyncio.run(main())
    assert outcomes == [Outcome.TIMEOUT] * 3 + [Outcome.INFRA_ERROR]
    assert (other, hanging, again) == (Outcome.OK, 3, Outcome.OK)


def test_a_coroutine_that_blocks_its_loop_does_not_stall_others():
    """The blocking call times out, the main loop continues, a concurrent call is an infra error, later calls work."""
    gate = []

    async def blocks() -> str:
        while not gate:
            time.sleep(0.001)  # noqa: ASYNC251  # the mistake under test
        return "late"

    async def bystander() -> str:
        await asyncio.sleep(0)
        return "fine"

    async def main():
        box = Toolbox([blocks, bystander, calculator], QUICK)
        async with box.session(task()) as session:
            blocked = asyncio.create_task(session.call(call("blocks")))
            await asyncio.sleep(0.01)
            beside = asyncio.create_task(session.call(call("bystander")))
            ticks = 0
            while not (blocked.done() and beside.done()):
                await asyncio.sleep(0.001)
                ticks += 1
            box.tools["bystander"].deadline_s = 5.0
            results = [blocked.result(), beside.result(), await session.call(call("bystander"))]
        metrics = box.metrics()
        gate.append(True)
        await box.close()
        return [result.outcome for result in results], ticks, metrics

    outcomes, ticks, metrics = asyncio.run(main())
    assert outcomes == [Outcome.TIMEOUT, Outcome.INFRA_ERROR, Outcome.OK]
    assert ticks > 10
    assert metrics["replaced_loops"] == 1


def test_a_task_that_ends_the_loop_does_not_end_the_tools():
    async def exits() -> str:
        async def child():
            raise SystemExit

        asyncio.create_task(child())  # noqa: RUF006  # careless, as users are
        await asyncio.sleep(0.001)
        return "survived"

    results, _ = run_calls([exits], call("exits"), call("exits"))
    assert [result.text for result in results] == ["survived", "survived"]


def test_threads_that_a_coroutine_starts_do_not_block_the_exit():
    """asyncio.to_thread runs on daemon threads."""
    import threading

    async def inner() -> str:
        return str(await asyncio.to_thread(lambda: threading.current_thread().daemon))

    assert one(inner).text == "True"


# lifecycle


def test_tool_state_lasts_for_one_rollout():
    tool = Recorder()
    first, session = run_calls([tool], *[call("recorder")] * 3)
    second, _ = run_calls([tool], call("recorder"))
    assert [result.text for result in first + second] == ["call 1", "call 2", "call 3", "call 1"]
    assert [result.reward for result in first] == [0.5] * 3
    assert session.rewards == {"recorder": 3.0}
    assert len(tool.created) == len(set(tool.created)) == 2
    assert tool.released == tool.created


def test_a_tool_that_is_not_called_is_not_created():
    tool = Recorder()
    _, session = run_calls([tool])
    assert (tool.created, tool.released, session.rewards) == ([], [], {})


def test_create_kwargs_arrive_splatted_and_nested():
    tool = Recorder()
    row = task(tools_kwargs={"recorder": {"create_kwargs": {"ground_truth": "7"}}})
    run_calls([tool], call("recorder"), row=row)
    assert tool.kwargs == [{"ground_truth": "7", "create_kwargs": {"ground_truth": "7"}}]


def test_tool_gets_only_arguments_of_its_signature():
    seen = {}

    class Narrow(BaseTool):
        tool_schema = schema("narrow")

        async def create(self):
            return "mine"

        async def execute(self, instance_id, parameters, agent_data, extra=None):
            seen.update(id=instance_id, task=agent_data.task, messages=agent_data.messages, extra=extra)
            return ToolResponse("ok"), None, None

        async def release(self, instance_id):
            seen["released"] = instance_id

    row = task(tools_kwargs={"narrow": {"create_kwargs": {"a": 1}, "execute_kwargs": {"extra": 2, "other": 3}}})
    (result,), _ = run_calls([Narrow({})], call("narrow"), row=row)
    assert result.outcome is Outcome.OK
    assert seen == {"id": "mine", "task": row, "messages": list(row.messages), "extra": 2, "released": "mine"}


def test_parallel_calls_create_once():
    class Slow(Recorder):
        async def create(self, instance_id=None, **kwargs):
            await asyncio.sleep(0.002)
            return await super().create(instance_id, **kwargs)

    async def main():
        tool = Slow()
        box = Toolbox([tool])
        async with box.session(task()) as session:
            await asyncio.gather(*(session.call(call("recorder")) for _ in range(5)))
        await box.close()
        return tool

    tool = asyncio.run(main())
    assert (len(tool.created), len(tool.calls), len(tool.released)) == (1, 5, 1)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("no box"), "row 4: create of tool 'recorder' raised OSError: no box"),
        (ToolError("no box"), "row 4: create of tool 'recorder' raised ToolError: no box"),
        (InfraError("no server"), None),
    ],
)
def test_a_failing_create_is_no_tool_error_and_nothing_is_released(error, text):
    class NoCreate(Recorder):
        async def create(self, instance_id=None, **kwargs):
            raise error

    tool = NoCreate()
    if text:
        with pytest.raises(DataError, match=text):
            run_calls([tool], call("recorder"), row=task(index=4))
    else:
        (result,), _ = run_calls([tool], call("recorder"))
        assert (result.outcome, result.text) == (Outcome.INFRA_ERROR, "Error: InfraError: no server")
    assert tool.released == []


@pytest.mark.parametrize("method", ["calc_reward", "release"])
@pytest.mark.parametrize("fault", ["raises", "hangs", "wrong"])
def test_failing_tool_release_is_ignored(method, fault, caplog, monkeypatch):
    for module in (lifecycle, toolbox):
        monkeypatch.setattr(module, "RELEASE_TIMEOUT_S", 0.05)

    async def bad(self, instance_id, **kwargs):
        if fault == "raises":
            raise OSError("gone")
        if fault == "hangs":
            await asyncio.sleep(60)
        return "no number"

    tool = type("Bad", (Recorder,), {method: bad})()
    good = Recorder()
    good.tool_schema = schema("good")
    good.name = "good"
    (_, result), session = run_calls([tool, good], call("recorder"), call("good"), multi_turn=QUICK)
    assert result.outcome is Outcome.OK
    assert good.released == good.created
    assert session.rewards["good"] == 1.0
    assert bool(caplog.records) == (method == "calc_reward" or fault != "wrong")


def test_everything_is_released_when_the_rollout_is_cancelled_twice():
    class Slow(Recorder):
        async def release(self, instance_id, **kwargs):
            await asyncio.sleep(0.01)
            await super().release(instance_id, **kwargs)

    async def main():
        tool = Slow()
        entered = asyncio.Event()
        box = Toolbox([tool])

        async def rollout():
            async with box.session(task()) as session:
                await session.call(call("recorder"))
                entered.set()
                await asyncio.sleep(60)

        running = asyncio.create_task(rollout())
        await entered.wait()
        running.cancel()
        await asyncio.sleep(0)  # the session is inside __aexit__ now
        running.cancel()
        await asyncio.wait([running])
        await box.close()
        return running.cancelled(), tool

    cancelled, tool = asyncio.run(main())
    assert cancelled
    assert tool.released == tool.created != []


def test_instances_created_after_the_end_are_released_too():
    """A `create` that ignores cancellation, and returns after the session has ended."""
    gate = []

    class Slow(Recorder):
        async def create(self, instance_id=None, **kwargs):
            while not gate:
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue
            return await super().create(instance_id, **kwargs)

    async def main():
        tool = Slow()
        box = Toolbox([tool], QUICK)
        async with box.session(task()) as session:
            result = await session.call(call("recorder"))
        assert tool.created == []
        gate.append(True)
        await until(lambda: tool.released)
        await box.close()
        return result, tool

    result, tool = asyncio.run(main())
    assert (result.outcome, "create of tool 'recorder' did not end" in result.text) == (Outcome.INFRA_ERROR, True)
    assert tool.released == tool.created
    assert tool.calls == []


# options of a row


def test_rows_select_tools():
    row = task(extra_info={"tool_selection": ["recorder"]})
    (result,), session = run_calls([calculator, Recorder()], call("calculator", expression="1"), row=row)
    assert [each.name for each in session.schemas] == ["recorder"]
    assert result.outcome is Outcome.FORMAT_ERROR


def test_a_selection_of_unknown_tools_is_refused():
    row = task(index=7, extra_info={"tool_selection": ["calculater"]})
    with pytest.raises(DataError, match=r"row 7: .*selects an unknown tool 'calculater': did you mean 'calculator'"):
        Toolbox([calculator]).session(row)


def test_arguments_for_unknown_tools_are_refused_at_the_start():
    row = task(tools_kwargs={"calculater": {}})
    with pytest.raises(DataError, match="field 'tools_kwargs': unknown tool 'calculater': did you mean"):
        Toolbox([calculator]).check(row)
    Toolbox().check(row)  # rows may name tools that a run without tools does not have
    Toolbox([calculator]).check(task(tools_kwargs={"calculator": {}}))


async def sleeps() -> str:
    """Sleep."""
    await asyncio.sleep(60)
    return "late"


class Sleeps(Recorder):
    async def execute(self, instance_id, parameters, **kwargs):
        await asyncio.sleep(60)


@pytest.mark.parametrize(("tool", "name"), [(sleeps, "sleeps"), (Sleeps({"timeout": 60}), "recorder")])
def test_row_timeout_applies_to_each_call(tool, name):
    row = task(extra_info={"tool_config": {"timeout": 0.02}})
    (result,), _ = run_calls([tool], call(name), row=row)
    assert (result.outcome, result.text) == (Outcome.TIMEOUT, "Error: no answer within 0.02 seconds")
    box = Toolbox([tool])
    box.session(row)
    assert box.tools[name].deadline_s == 60  # for other rows, the configured timeout


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two tools have the name 'calculator'"):
        Toolbox([calculator, calculator])


def test_timeout_of_a_tool_overrides_the_default():
    assert Toolbox([Recorder({"timeout": 3})], QUICK).tools["recorder"].deadline_s == 3
    with pytest.raises(ConfigError, match="timeout_s must be a number above 0"):
        Toolbox([Recorder({"timeout_s": "soon"})])


def test_infra_errors_are_retried_if_the_tool_has_retries(monkeypatch):
    monkeypatch.setattr(toolbox, "_FIRST_PAUSE_S", 0.0)
    failures = iter(range(5))

    @tool(retries=2)
    def flaky() -> str:
        """Fail now and then."""
        if next(failures) in (0, 2, 3, 4):
            raise InfraError("down")
        return "up"

    results, _ = run_calls([flaky], call("flaky"), call("flaky"))
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.INFRA_ERROR]
    with pytest.raises(ConfigError, match="retries must be an integer of 0 or more"):
        tool(retries=-1)(flaky)
    with pytest.raises(ConfigError, match="retries must be an integer of 0 or more"):
        Toolbox([Recorder({"retries": "2"})])


def test_missing_create_argument_ends_the_run():
    class Needy(Recorder):
        async def create(self, instance_id=None, **kwargs):
            return kwargs["create_kwargs"]["shelf"], ToolResponse()

    with pytest.raises(DataError, match=r"row 0: create of tool 'recorder' needs 'shelf', but the row has no"):
        run_calls([Needy()], call("recorder"))
    other = task(tools_kwargs={"recorder": {"create_kwargs": {"room": 1}}})
    with pytest.raises(DataError, match=r"row 0: create of tool 'recorder' raised KeyError: 'shelf' \(.*toolbox.py:"):
        run_calls([Needy()], call("recorder"), row=other)


def test_methods_get_the_seed_of_the_rollout_if_they_name_it():
    class Seeded(Recorder):
        async def create(self, instance_id=None, *, seed, **kwargs):
            self.kwargs.append((seed, sorted(kwargs)))
            return instance_id, ToolResponse()

        async def execute(self, instance_id, parameters, seed, agent_data, **kwargs):
            return ToolResponse(f"{seed} {agent_data.seed}"), 0.0, {}

    def seeds(row):
        tool = Seeded()

        async def main():
            box = Toolbox([tool])
            box.check(row)
            async with box.session(row) as session:
                session.data.seed = 9
                result = await session.call(call("recorder"))
            await box.close()
            return result.text, tool.kwargs[0]

        return asyncio.run(main())

    assert seeds(task()) == ("9 9", (9, ["create_kwargs"]))
    own = {"create_kwargs": {"seed": 1}}
    assert seeds(task(tools_kwargs={"recorder": own})) == ("9 9", (1, ["create_kwargs"]))
