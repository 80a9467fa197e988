"""A tool that holds the GIL, as a catastrophic regular expression does, ends its run with one line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

SCRIPT = '''
import asyncio, re, sys
from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.concurrency.signals import ended_by_signals
from agentrl.types.task import Task
from agentrl.tools import tool
from agentrl.tools.toolbox import Toolbox

@tool
{kind} search(text: str) -> str:
    """Search."""
    print("searching", flush=True)
    return str(re.match("(a+)+$", text))

async def main():
    box = Toolbox([search], MultiTurnConfig(tool_timeout_s=1.0))
    async with box.session(Task([])) as session:
        print(await session.call(ParsedCall("search", '{{"text": "%sb"}}' % ("a" * 60))))

with ended_by_signals():
    asyncio.run(main())
'''


def started(kind):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(kind=kind)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "searching\n"
    return process


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_the_run_ends_with_one_line_that_names_the_tool(kind):
    out, err = started(kind).communicate(timeout=60)
    assert out == ""
    assert re.match(r"agentrl: tool 'search': [1-9]\d seconds past the deadline", err.strip())
    assert "isolation: process" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_the_process_immediately(number):
    process = started("def")
    time.sleep(1.0)  # by now the regex search holds the GIL, even on a busy machine
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=8)
    assert "interrupted, ended at once" in err
