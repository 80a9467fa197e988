"""Helpers for tests of MCP tools."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from tool_builders import task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools.loading import tools_of
from agentrl.tools.toolbox import Toolbox

RAW = Path(__file__).parent / "raw_server.py"
QUICK = MultiTurnConfig(tool_timeout_s=20.0)


def raw(*start, **keys):
    """The hand-written server as an entry of a YAML file."""
    server = {"name": "raw", "command": sys.executable, "args": ["-I", "-S", str(RAW), *start]}
    return {"mcp": server, **keys}


def load(folder, *entries):
    """The tools of a YAML file with these entries."""
    path = folder / "tools.yaml"
    path.write_text(json.dumps({"tools": [*entries]}))  # JSON is YAML
    return [*tools_of(path)]


@asynccontextmanager
async def toolbox(tools, multi_turn=QUICK):
    box = Toolbox(tools, multi_turn)
    try:
        yield box
    finally:
        await box.close()


async def calls_in(box, *calls):
    """The results of these calls in one rollout."""
    async with box.session(task()) as session:
        return [await session.call(each) for each in calls]


def run(tools, *calls, multi_turn=QUICK):
    """(results of these calls in one rollout, metrics afterwards)."""

    async def main():
        async with toolbox(tools, multi_turn) as box:
            results = await calls_in(box, *calls)
        return results, box.metrics()

    return asyncio.run(main())


def alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def environment_of(pid):
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
