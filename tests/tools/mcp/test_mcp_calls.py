"""Calls of tools of an MCP server over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from mcp_builders import QUICK, RAW, alive, calls_in, environment_of, load, raw, run, toolbox
from tool_builders import call, task, until

from agentrl.tools.mcp import stdio
from agentrl.types.rollout import Outcome


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)


def test_arguments_reach_the_server_and_its_text_comes_back(tmp_path):
    (result,), metrics = run(load(tmp_path, raw()), call("echo", a=[1, None], b="ü😀"))
    assert (json.loads(result.text), result.outcome) == ({"a": [1, None], "b": "ü😀"}, Outcome.OK)
    assert (metrics["mcp_sessions_opened"], metrics["mcp_sessions_reopened"], metrics["mcp_calls"]) == (1, 0, 1)
    assert metrics["mcp_open_s"] > 0 < metrics["mcp_call_s"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("tool", "outcome", "text"),
    [
        ("fails", Outcome.TOOL_ERROR, "Error: no such city"),
        ("refuses", Outcome.TOOL_ERROR, "Error: the argument 'city' is missing"),
        ("breaks", Outcome.INFRA_ERROR, "MCP server 'raw': it answered with an error: internal error"),
        ("pretends", Outcome.INFRA_ERROR, "it answered with an error: timed out"),
        ("lies", Outcome.INFRA_ERROR, "its answer cannot be used: ValidationError"),
        ("twice", Outcome.OK, "first"),
        ("garbage", Outcome.OK, "after garbage"),
        ("asks", Outcome.OK, "Sampling not supported"),
        ("errors", Outcome.OK, "ok"),
        ("media", Outcome.OK, "[audio/wav, 3 bytes]\na text\n[application/pdf, 3 bytes]\n[resource example: https://"),
        ("structured", Outcome.OK, '{"a": [1, 2]}'),
        ("nothing", Outcome.OK, "[no output]"),
        ("image", Outcome.OK, "a pixel"),
        ("bad_image", Outcome.TOOL_ERROR, "an image that cannot be used"),
        ("many_images", Outcome.TOOL_ERROR, "17 images, at most 16"),
    ],
)
def test_what_a_server_answers_has_an_outcome_and_the_session_goes_on(tmp_path, tool, outcome, text):
    results, metrics = run(load(tmp_path, raw()), call(tool), call("echo", a=1))
    assert results[0].outcome == outcome, results[0].text
    assert text in results[0].text
    assert results[1].text == '{"a": 1}'
    assert metrics["mcp_sessions_opened"] == 1
    assert [image[:4] for image in results[0].images] == ([b"\x89PNG"] if tool == "image" else [])


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["silent", "other_id"])
def test_a_call_without_an_answer_times_out_and_is_cancelled_on_the_server(tmp_path, tool):
    tools = load(tmp_path, raw(timeout_s=0.3))
    (late, told), metrics = run(tools, call(tool), call("cancelled"))
    assert (late.outcome, late.text) == (Outcome.TIMEOUT, "Error: no answer within 0.3 seconds")
    assert len(json.loads(told.text)) == 1
    assert metrics["mcp_sessions_opened"] == 1


def test_the_row_can_set_another_timeout(tmp_path):
    async def main():
        row = task(extra_info={"tool_config": {"timeout": 0.2}})
        async with toolbox(load(tmp_path, raw())) as box, box.session(row) as session:
            return await session.call(call("silent"))

    assert asyncio.run(main()).text == "Error: no answer within 0.2 seconds"


@pytest.mark.slow
def test_a_server_that_hangs_is_ended_with_its_rollout(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw(timeout_s=0.3)), QUICK) as box:
            first, *late = await calls_in(box, call("pid"), call("hang"), call("echo"))
            fresh = await calls_in(box, call("echo"))
        return int(first.text), late, fresh

    pid, late, fresh = asyncio.run(main())
    assert [result.outcome for result in late] == [Outcome.TIMEOUT] * 2
    assert fresh[0].outcome == Outcome.OK
    assert not alive(pid)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("die", {}, "it ended with status 3; its error output ends: Traceback: the disk is on fire"),
        ("flood", {}, "it sent 10000 messages in a row that answer no request"),
        ("big", {"bytes": 9 * 2**20}, "it sent a message of more than 8 MiB"),
    ],
)
def test_a_lost_server_is_opened_again_for_the_next_call_and_the_lost_call_is_not_repeated(
    tmp_path, tool, arguments, reason
):
    tools = load(tmp_path, raw())
    results, metrics = run(tools, call("count"), call(tool, **arguments), call("count"))
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.INFRA_ERROR, Outcome.OK]
    assert "MCP server 'raw': the connection was lost during the call" in results[1].text
    assert reason in results[1].text
    assert results[2].text == "1"  # a fresh process
    assert (metrics["mcp_sessions_opened"], metrics["mcp_sessions_reopened"]) == (2, 1)


def test_a_large_answer_is_cut_and_costs_no_session(tmp_path):
    (result,), _ = run(load(tmp_path, raw()), call("big", bytes=6 * 2**20))
    assert result.outcome == Outcome.OK
    assert len(result.text) == 20_000


def test_each_rollout_has_a_session_of_its_own(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw(max_sessions=2))) as box:
            results = await asyncio.gather(*(calls_in(box, call("count"), call("count")) for _ in range(4)))
            return [[result.text for result in each] for each in results], box.metrics()

    texts, metrics = asyncio.run(main())
    assert texts == [["1", "2"]] * 4
    assert metrics["mcp_sessions_opened"] == 4


def test_no_more_sessions_are_open_than_allowed(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw(max_sessions=1))) as box, box.session(task()) as first:
            await first.call(call("echo"))
            async with box.session(task()) as second:
                waiting = asyncio.ensure_future(second.call(call("echo")))
                await first.call(call("echo"))
                assert not waiting.done()
                first._tools["echo"].shared.release(first.data.request_id)
                return await waiting

    assert asyncio.run(main()).outcome == Outcome.OK


@pytest.mark.slow
def test_a_shared_session_serves_all_rollouts_concurrently(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw(sessions="shared", timeout_s=0.5))) as box:
            blocked = asyncio.ensure_future(calls_in(box, call("silent")))
            results = await asyncio.gather(*(calls_in(box, call("count")) for _ in range(20)))
            await blocked
            return sorted(int(result.text) for (result,) in results), box.metrics()

    numbers, metrics = asyncio.run(main())
    assert numbers == [*range(1, 21)]
    assert metrics["mcp_sessions_opened"] == 1


def test_parallel_calls_of_a_rollout_open_one_session(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw())) as box, box.session(task()) as session:
            results = await asyncio.gather(*(session.call(call("pid")) for _ in range(8)))
            return {result.text for result in results}

    assert len(asyncio.run(main())) == 1


def test_a_rollout_that_is_cancelled_leaves_no_process(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw(max_sessions=1))) as box:
            (first,) = await calls_in(box, call("pid"))

            async def rollout():
                async with box.session(task()) as session:
                    await session.call(call("silent"))

            running = asyncio.ensure_future(rollout())
            await until(lambda: box.metrics()["mcp_calls"] == 2)
            running.cancel()
            await asyncio.wait({running})
            (last,) = await calls_in(box, call("pid"))  # its place is free
        return [int(first.text), int(last.text)]

    assert not any(map(alive, asyncio.run(main())))


def test_the_server_gets_few_variables_and_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "not for servers")
    entry = raw()
    entry["mcp"] |= {"env": {"PORT": 8080}, "cwd": "inside"}
    (tmp_path / "inside").mkdir()
    (result,), _ = run(load(tmp_path, entry), call("environment"))
    told, folder = result.text.split("\n")
    variables = json.loads(told)
    assert variables["PORT"] == "8080"
    assert variables.keys() <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "PORT", "AGENTRL_MCP", "LC_CTYPE"}
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert folder == str(tmp_path / "inside")


def test_a_change_of_the_tools_is_reported_once(tmp_path, caplog):
    tools = load(tmp_path, raw(tools=["changes", "renames", "echo", "count"]))

    async def main():
        async with toolbox(tools) as box, box.session(task()) as session:
            await session.call(call("changes"))  # reports a change, and has none
            await session.call(call("count"))
            await session.call(call("renames"))
            await until(lambda: caplog.records)
            await session.call(call("renames"))
            return await session.call(call("echo", a=1))

    assert asyncio.run(main()).text == '{"a": 1}'
    assert [record.message for record in caplog.records] == [
        "MCP server 'raw' changed its tools (echo, changes, renames); the run keeps the tools listed at the start"
    ]


def test_all_processes_of_a_server_end_with_its_session(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw())) as box:
            started, _ = await calls_in(box, call("forks"), call("echo"))
        return json.loads(started.text)

    assert not any(map(alive, asyncio.run(main())))


@pytest.mark.slow
def test_a_stubborn_server_is_killed(tmp_path):
    async def main():
        async with toolbox(load(tmp_path, raw())) as box:
            (started,) = await calls_in(box, call("stubborn"))
            assert any(entry.startswith(b"AGENTRL_MCP=") for entry in environment_of(int(started.text)))
        return int(started.text)

    assert not alive(asyncio.run(main()))


def test_nothing_is_started_before_the_first_call(tmp_path):
    _, metrics = run(load(tmp_path, raw()))
    assert metrics["mcp_sessions_opened"] == 0


def test_a_server_that_does_not_start_again_is_an_infrastructure_failure(tmp_path):
    script = tmp_path / "once.py"
    script.write_text(f"import pathlib, runpy, sys\nflag = pathlib.Path({str(tmp_path)!r}) / 'flag'\n"
                      f"sys.exit('no second time') if flag.exists() else flag.touch()\n"
                      f"runpy.run_path({str(RAW)!r}, run_name='__main__')\n")  # fmt: skip
    tools = load(tmp_path, {"mcp": {"name": "once", "command": sys.executable, "args": ["once.py"]}})
    (result,), metrics = run(tools, call("echo"))
    assert result.outcome == Outcome.INFRA_ERROR
    assert "MCP server 'once': it did not start; " in result.text
    assert "it ended with status 1; its error output ends: no second time" in result.text
    assert metrics["mcp_sessions_opened"] == 0
