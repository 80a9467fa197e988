"""Tools and rewards in processes that fork, forge results or leave children: other rollouts and runs stay unharmed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest

from agentrl.chat.base import ParsedCall
from agentrl.registry import load_file
from agentrl.rewards.functions.processes import ProcessReward, ScorePool
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome
from agentrl.types.task import Task

TOOL = '''
import os, subprocess, sys, time
from agentrl.tools import tool

@tool(isolation="process")
def act(what: str) -> str:
    """Misbehave."""
    if what == "fork":
        os.fork()
    if what == "leave":
        orphan = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(300)"
        held = [number for number in range(3, 30) if os.path.exists(f"/proc/self/fd/{number}")]
        process = subprocess.Popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE, pass_fds=held)
        print(int(process.stdout.readline()), file=open(os.environ["ORPHANS"], "a"))
        os._exit(1)
    return what
'''
REWARD = """
import os

def score(solution_str):
    if solution_str == "fork":
        os.fork()
        return 0
    return float(solution_str)
"""


@pytest.mark.slow
def test_forking_tool_does_not_mix_up_answers(tmp_path):
    (tmp_path / "forking.py").write_text(TOOL)
    box = Toolbox([load_file(tmp_path / "forking.py").act])

    async def ask(what):
        async with box.session(Task([])) as session:
            return await session.call(ParsedCall("act", json.dumps({"what": what})))

    async def main():
        results = [await ask(what) for what in ["fork", *map(str, range(8))]]
        await box.close()
        return results

    results = asyncio.run(main())
    assert [(result.outcome, result.text) for result in results[1:]] == [(Outcome.OK, str(n)) for n in range(8)]


@pytest.mark.slow
def test_forking_reward_does_not_mix_up_scores(tmp_path):
    (tmp_path / "forking.py").write_text(REWARD)
    pool = ScorePool(1)
    reward = ProcessReward(load_file(tmp_path / "forking.py").score, {}, 20.0, "score", pool)

    async def main():
        scored = [await reward("math", text, None, {}) for text in ["fork", *map(str, range(8))]]
        pool.close()
        return [each["score"] for each in scored]

    assert asyncio.run(main()) == [0, *range(8)]


@pytest.mark.slow
def test_a_tool_that_dies_and_leaves_children_does_not_hold_up_the_end(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text(TOOL)
    monkeypatch.setenv("ORPHANS", str(tmp_path / "orphans"))
    box = Toolbox([load_file(tmp_path / "leaving.py").act])

    async def main():
        async with box.session(Task([])) as session:
            result = await session.call(ParsedCall("act", '{"what": "leave"}'))
        start = time.monotonic()
        await box.close()
        return result, time.monotonic() - start

    try:
        result, closing_s = asyncio.run(main())
    finally:
        for pid in (tmp_path / "orphans").read_text().split():
            os.kill(int(pid), signal.SIGKILL)  # it left the process group, as a daemon does
    assert result.outcome is Outcome.INFRA_ERROR
    assert closing_s < 10
