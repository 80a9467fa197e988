from __future__ import annotations

import asyncio
import os

import pytest
from tool_builders import call, task, until

from agentrl.attempt import Outcome
from agentrl.config.rollout import MultiTurnConfig
from agentrl.offload.child import import_path
from agentrl.offload.mailbox import Mailbox
from agentrl.offload.reply import Reply
from agentrl.registry import load_file
from agentrl.tools.function import as_tool
from agentrl.tools.process import ProcessWorker
from agentrl.tools.toolbox import Toolbox

SOURCE = '''
import os, sys, time
from agentrl.tools import tool, ToolError, InfraError

@tool(isolation="process")
def act(what: str) -> str:
    """Misbehave."""
    print("noise on stdout")
    if what == "hang":
        while True:
            time.sleep(1)
    if what == "die":
        os._exit(3)
    if what == "exit":
        sys.exit(2)
    if what == "raise":
        raise KeyError("k")
    if what == "tool_error":
        raise ToolError("told")
    if what == "infra_error":
        raise InfraError("down")
    return str(os.getpid()), 0.5, {"m": 1}
'''


@pytest.fixture
def act(tmp_path):
    path = tmp_path / "acting.py"
    path.write_text(SOURCE)
    return load_file(path).act


def test_calls_run_in_one_other_process_that_is_killed_and_replaced(act):
    async def main():
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        async with box.session(task()) as session:

            async def do(what):
                return await session.call(call("act", what=what))

            first, second = await do("pid"), await do("pid")
            others = {what: await do(what) for what in ("raise", "tool_error", "infra_error", "exit", "die")}
            after_death = await do("pid")
            box.tools["act"].deadline_s = 0.02
            hung = await do("hang")
            box.tools["act"].deadline_s = 5.0
            after_hang = await do("pid")
            await until(lambda: not box.metrics()["abandoned_calls"])
        await box.close()
        return first, second, others, after_death, hung, after_hang

    first, second, others, after_death, hung, after_hang = asyncio.run(main())
    assert first.text == second.text != str(os.getpid())
    assert (first.outcome, first.reward, first.metrics) == (Outcome.OK, 0.5, {"m": 1})
    assert (others["raise"].outcome, others["raise"].text) == (Outcome.TOOL_ERROR, "Error: KeyError: 'k'")
    assert (others["tool_error"].outcome, others["tool_error"].text) == (Outcome.TOOL_ERROR, "Error: told")
    assert others["infra_error"].outcome is Outcome.INFRA_ERROR
    assert (others["exit"].outcome, others["exit"].text) == (Outcome.TOOL_ERROR, "Error: SystemExit: 2")
    assert others["die"].outcome is Outcome.INFRA_ERROR
    assert "status 3" in others["die"].text
    assert hung.outcome is Outcome.TIMEOUT
    pids = [first.text, after_death.text, after_hang.text]
    assert len(set(pids)) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_process_that_cannot_start_is_infra(act, tmp_path):
    async def main():
        box = Toolbox([as_tool(act)])
        (tmp_path / "acting.py").write_text("raise OSError('moved')")
        async with box.session(task()) as session:
            result = await session.call(call("act", what="pid"))
        await box.close()
        return result

    assert asyncio.run(main()).outcome is Outcome.INFRA_ERROR


def test_a_function_is_found_by_module_or_by_file(act, tmp_path):
    from agentrl.tools.calculator import calculator

    assert import_path(calculator) == "agentrl.tools.calculator:calculator"
    assert import_path(act) == f"{tmp_path / 'acting.py'}:act"


def test_a_hanging_process_ends_with_its_parent(act):
    worker = ProcessWorker(import_path(act))
    worker.start()
    worker._process.stdin.write('{"what": "hang"}\n')
    worker._process.stdin.close()  # what the parent's death does
    assert worker._process.wait(timeout=10) == 0
    worker.close()


def test_a_process_that_is_ready_too_late_serves_the_next_call(act, tmp_path):
    async def main():
        (tmp_path / "acting.py").write_text("import time; time.sleep(0.2)\n" + SOURCE)
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        async with box.session(task()) as session:
            gone = asyncio.create_task(session.call(call("act", what="pid")))
            await asyncio.sleep(0.05)
            gone.cancel()
            await asyncio.wait([gone])
            pool = box.tools["act"]._pool
            await until(lambda: pool._idle)
            kept = pool._idle[0]
            await session.call(call("act", what="pid"))
            assert pool._all == [kept]
        await box.close()
        return kept.alive

    assert asyncio.run(main()) is False


def test_a_call_that_finds_no_place_leaves_its_process_to_the_next(act):
    async def main():
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        bound = box.tools["act"]
        async with box.session(task()) as session:
            bound.lane.max_abandoned = 0
            bound.lane.abandon(Reply(Mailbox(asyncio.get_running_loop())))
            refused = await session.call(call("act", what="pid"))
        num_idle, num_all = len(bound._pool._idle), len(bound._pool._all)
        await box.close()
        return refused.outcome, num_idle, num_all

    assert asyncio.run(main()) == (Outcome.INFRA_ERROR, 1, 1)
