"""No process of a server outlives the run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest
from mcp_builders import RAW, alive
from tool_builders import until

from agentrl.tools.mcp.reaper import Reaper

RUN = """
import asyncio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from mcp_builders import calls_in, load, raw, toolbox
from tool_builders import call, task

async def main():
    async with toolbox(load(Path({folder!r}), raw())) as box:
        async with box.session(task()) as session:
            print((await session.call(call("forks"))).text, flush=True)
            await session.call(call("stubborn"))
            print("called", flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_process_of_a_server(tmp_path):
    path = [str(RAW.parent), str(RAW.parents[1]), *sys.path]
    script = RUN.format(path=path, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        pids = json.loads(run.stdout.readline())
        assert run.stdout.readline() == "called\n"
        assert all(map(alive, pids))  # the server, a process of its group, and one that left the group
        run.kill()
    asyncio.run(until(lambda: not any(map(alive, pids))))


def sleeping(environment):
    """A process that sleeps, once it runs."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, env=environment)
    process.stdout.readline()
    return process


def test_the_helper_kills_what_is_recorded_and_what_has_its_mark():
    reaper = Reaper()
    reaper.start()
    started = [sleeping(environment) for environment in ({}, {}, reaper.environment, {"AGENTRL_MCP": "another"})]
    recorded, ended, marked, other = started
    reaper.started(recorded.pid)
    reaper.started(ended.pid)
    reaper.ended(ended.pid)
    reaper.close()
    asyncio.run(until(lambda: recorded.poll() is not None and marked.poll() is not None))
    assert (ended.poll(), other.poll()) == (None, None)
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
