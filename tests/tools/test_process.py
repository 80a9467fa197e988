from __future__ import annotations

import asyncio
import os

import pytest
from tool_builders import call, run_calls, task, until

from agentrl.concurrency.child import import_path
from agentrl.concurrency.mailbox import Mailbox, Reply
from agentrl.config.rollout import MultiTurnConfig
from agentrl.registry import load_file
from agentrl.tools.function import as_tool
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_process_that_fails_to_start_is_an_infra_error(act, tmp_path):
    async def main():
        box = Toolbox([as_tool(act)])
        (tmp_path / "acting.py").write_text("raise OSError('moved')")
        async with box.session(task()) as session:
            result = await session.call(call("act", what="pid"))
        await box.close()
        return result

    assert asyncio.run(main()).outcome is Outcome.INFRA_ERROR


def test_a_function_is_found_by_module_or_by_file(tmp_path):
    from agentrl.tools.calculator import calculator

    assert import_path(calculator) == "agentrl.tools.calculator:calculator"
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "found_twice.py").write_text(SOURCE)
    first, second = (load_file(tmp_path / folder / "found_twice.py").act for folder in ("first", "second"))
    assert import_path(first) == "found_twice:act"  # `import found_twice` finds this file
    assert import_path(second) == f"{tmp_path / 'second/found_twice.py'}:act"


@pytest.mark.slow
def test_process_ready_after_the_timeout_serves_the_next_call(act, tmp_path):
    async def main():
        (tmp_path / "acting.py").write_text("import time; time.sleep(0.2)\n" + SOURCE)
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        async with box.session(task()) as session:
            gone = asyncio.create_task(session.call(call("act", what="pid")))
            await asyncio.sleep(0.05)
            gone.cancel()
            await asyncio.wait([gone])
            pool = box.tools["act"]._processes._pool
            await until(lambda: pool._idle)
            kept = pool._idle[0]
            await session.call(call("act", what="pid"))
            assert pool._all == {kept}
        await box.close()
        return kept.alive

    assert asyncio.run(main()) is False


@pytest.mark.slow
def test_timed_out_caller_leaves_its_process_to_the_next_call(act):
    async def main():
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        bound = box.tools["act"]
        async with box.session(task()) as session:
            bound.breaker.max_abandoned = 0
            bound.breaker.abandon(Reply(Mailbox(asyncio.get_running_loop())))
            refused = await session.call(call("act", what="pid"))
        pool = bound._processes._pool
        num_idle, num_all = len(pool._idle), len(pool._all)
        await box.close()
        return refused.outcome, num_idle, num_all

    assert asyncio.run(main()) == (Outcome.INFRA_ERROR, 1, 1)


@pytest.mark.slow
def test_calls_wait_where_all_processes_are_busy(act):
    async def main():
        box = Toolbox([act], MultiTurnConfig(tool_timeout_s=5.0))
        pool = box.tools["act"]._processes._pool
        pool._size = 1
        async with box.session(task()) as session:
            results = await asyncio.gather(*(session.call(call("act", what="pid")) for _ in range(20)))
        await box.close()
        return {(result.outcome, result.text) for result in results}

    (only,) = asyncio.run(main())
    assert only[0] is Outcome.OK


def test_process_that_cannot_start_is_an_infra_error(act, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(24, "Too many open files")

    async def main():
        box = Toolbox([act])
        monkeypatch.setattr("agentrl.concurrency.child.subprocess.Popen", refuse)
        async with box.session(task()) as session:
            result = await session.call(call("act", what="pid"))
        await box.close()
        return result

    result = asyncio.run(main())
    assert result.outcome is Outcome.INFRA_ERROR
    assert "Too many open files" in result.text


@pytest.mark.slow
def test_tool_process_can_import_neighbouring_files(tmp_path):
    (tmp_path / "cellar.py").write_text("WINES = ['red']\n")
    (tmp_path / "json.py").write_text("raise SystemExit('the standard library is shadowed')\n")
    (tmp_path / "pouring.py").write_text(
        "from cellar import WINES\nfrom agentrl.tools import tool\n\n@tool(isolation='process')\n"
        "def pour() -> str:\n    'Pour.'\n    return WINES[0]\n"
    )
    ((result,), _) = run_calls([load_file(tmp_path / "pouring.py").pour], call("pour"))
    assert (result.text, result.outcome) == ("red", Outcome.OK)
