"""Measure the overhead of MCP tool calls: agentrl's toolbox compared with the MCP SDK's client, over stdio and HTTP.

python benchmarks/mcp_calls.py [--calls 500] [--at-once 1 32 100]

The server is built with the SDK and runs in a separate process. Its tool returns the argument of the call. Toolbox and
client each use one session for all calls. `CPU ms` is the CPU time of the calling process per call. For stdio and for
HTTP, the last line is about several concurrent rollouts, each with its own session and one call, as with `sessions:
rollout`. It shows their total time divided by their number. The first line of the output is the cost of one process of
`examples/mcp/calculator_server.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from agentrl.chat.base import ParsedCall
from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools.loading import tools_of
from agentrl.tools.toolbox import Toolbox
from agentrl.types.task import Task

SERVER = """
import socket, sys
import uvicorn
from mcp.server import MCPServer

server = MCPServer("echo")

@server.tool(structured_output=False)
async def echo(text: str) -> str:
    return text

if sys.argv[1:] == ["stdio"]:
    server.run()
else:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(200)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical")).run(sockets=[listener])
"""
EXAMPLE = Path(__file__).parents[1] / "examples/mcp/calculator_server.py"
Call = Callable[[], Awaitable[object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 32, 100])
    parser.add_argument("--rollouts", type=int, default=16)
    arguments = parser.parse_args()
    print(cost_of_a_process())
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "server.py")
        script.write_text(SERVER, encoding="utf-8")
        asyncio.run(measure("stdio", {"command": sys.executable, "args": [str(script), "stdio"]}, folder, arguments))
        with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                asyncio.run(measure("http", {"url": server.stdout.readline().strip()}, folder, arguments))
            finally:
                server.kill()


def cost_of_a_process() -> str:
    """Return a line with the memory and the CPU time of a server process that answers one message and ends."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "benchmark", "version": "1"}}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        [sys.executable, EXAMPLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(message, file=process.stdin, flush=True)
        process.stdout.readline()
        resident = re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"))
        process.stdin.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"a process of the example server: {int(resident[0]) / 1000:.0f} MB, {used:.1f} s of CPU time"


async def measure(kind: str, server: dict[str, Any], folder: str, arguments: argparse.Namespace) -> None:
    print(f"{kind:6} {'side':8} {'at once':>7} {'p50 ms':>8} {'p99 ms':>8} {'calls/s':>8} {'CPU ms':>7}")
    for at_once in arguments.at_once:
        for side, opened in (("SDK", sdk_call), ("agentrl", toolbox_call)):
            async with opened(server, folder) as call:
                await call()
                used = time.process_time()
                took = await times(call, arguments.calls, at_once)
                used = 1000 * (time.process_time() - used) / arguments.calls
            p50, p99 = (1000 * statistics.quantiles(took[0], n=100)[at] for at in (49, 98))
            print(f"{kind:6} {side:8} {at_once:7} {p50:8.2f} {p99:8.2f} {arguments.calls / took[1]:8.0f} {used:7.2f}")
    each = await sessions(server, folder, arguments.rollouts)
    print(f"{kind:6} {arguments.rollouts} rollouts with a session each: {each}")


async def times(call: Call, num_calls: int, at_once: int) -> tuple[list[float], float]:
    """Return the seconds of each call, and the seconds from the start of the first call to the end of the last."""
    left, took = [None] * num_calls, list[float]()

    async def worker() -> None:
        while left:
            left.pop()
            started = time.perf_counter()
            await call()
            took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return took, time.perf_counter() - started


@asynccontextmanager
async def sdk_call(server: dict[str, Any], folder: str):
    target = server["url"] if "url" in server else StdioServerParameters(**server)
    async with Client(target) as client:
        yield lambda: client.call_tool("echo", {"text": "hello"})


@asynccontextmanager
async def toolbox_call(server: dict[str, Any], folder: str):
    async with AsyncExitStack() as stack:
        box = await open_toolbox(server, folder, stack, sessions="shared")
        session = await stack.enter_async_context(box.session(Task([])))
        yield lambda: session.call(ParsedCall("echo", '{"text": "hello"}'))


def listing(folder: str, entry: dict[str, Any]) -> Path:
    path = Path(folder, "tools.yaml")
    path.write_text(json.dumps({"tools": [entry]}), encoding="utf-8")
    return path


async def open_toolbox(server: dict[str, Any], folder: str, stack: AsyncExitStack, **keys: object) -> Toolbox:
    box = Toolbox(tools_of(listing(folder, {"mcp": {"name": "echo", **server}, **keys})), MultiTurnConfig())
    stack.push_async_callback(box.close)
    return box


async def sessions(server: dict[str, Any], folder: str, num_rollouts: int) -> str:
    async with AsyncExitStack() as stack:
        box = await open_toolbox(server, folder, stack)

        async def rollout() -> None:
            async with box.session(Task([])) as session:
                result = await session.call(ParsedCall("echo", '{"text": "hello"}'))
                assert result.text == "hello", result.text

        started = time.perf_counter()
        await asyncio.gather(*(rollout() for _ in range(num_rollouts)))
        return f"{1000 * (time.perf_counter() - started) / num_rollouts:.0f} ms each"


if __name__ == "__main__":
    main()
