"""Measure the gateway's overhead: time per HTTP request, compared with a direct call, and memory per session.

python benchmarks/gateway.py [--requests 500] [--sessions 1 16 64 256] [--kilobytes 1 20 86]

The session immediately answers with a short turn that calls a tool. Each line compares three times: a call of the
session in Python (`call`), a request to the same HTTP server with a handler that only reads the body and returns a
constant answer (`constant`), and a request to the gateway. The server runs in one process, and its clients run in
another process. Each session has one request at a time. `overhead` is the gateway's median minus the medians of `call`
and `constant`. CPU is the CPU time of the server's process per request. Bodies are Chat Completions requests like those
of coding agents: a user message, tools, and a conversation with calls and results.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import ClientSession, TCPConnector, web

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer, TurnRequest
from agentrl.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from agentrl.gateway.dialects.json_text import dumped, read_body
from agentrl.gateway.server import GatewayServer

ANSWER = TurnAnswer(
    "turn", "Let me look.", calls=(AnswerCall("call", "bash", '{"command": "ls"}'),), finish=Finish.CALLS
)


class Instant:
    """A session that answers immediately."""

    def __init__(self) -> None:
        self.num_turns = 0

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        self.num_turns += 1
        return replace(ANSWER, turn_id=f"turn_{self.num_turns}")

    def delivered(self, turn_id: str) -> None: ...

    def count_tokens(self, request: TurnRequest) -> int:
        return 0


@dataclass(frozen=True)
class Load:
    """The requests that a client process sends, and their addresses."""

    urls: list[str]
    body: bytes
    num_requests: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="requests per measurement, at least one per session")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--kilobytes", type=int, nargs="+", default=[1, 20, 86])
    arguments = parser.parse_args()
    print(f"{'KB':>4} {'sessions':>8} {'call ms':>8} {'constant p50':>13} {'gateway p50':>12} {'p99':>7} "
          f"{'requests/s':>10} {'CPU ms':>7} {'overhead ms':>11}")  # fmt: skip
    for kilobytes in arguments.kilobytes:
        body = body_of(kilobytes * 1000)
        for num_sessions in arguments.sessions:
            asyncio.run(measure(body, num_sessions, max(arguments.requests, num_sessions)))
    print(f"memory a session: {memory_a_session():.1f} KB")


def body_of(num_bytes: int) -> bytes:
    """Return the body of a request, with `num_bytes` bytes."""
    parameters = {"type": "object", "properties": {"command": {"type": "string", "description": "A command.\n" * 10}}}
    tool = {
        "type": "function",
        "function": {"name": "bash", "description": "Runs it.\n" * 40, "parameters": parameters},
    }
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls -a"}'}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a.txt\nb.txt\n" * 30},
    ]
    body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "Fix it."}], "tools": []}
    while len(dumped(body)) < num_bytes - 1500:
        body["messages"] += turn
        if len(dumped(body)) < num_bytes - 1500 and len(body["tools"]) < 25:
            body["tools"].append(tool)
    body["messages"][0]["content"] += "." * (num_bytes - len(dumped(body)))
    return dumped(body)


async def measure(body: bytes, num_sessions: int, num_requests: int) -> None:
    """Measure bodies of one size with one number of sessions, and print one line."""
    called = await call_ms(body, num_requests)
    async with constant_server() as url:
        constant, _, _ = await requests(Load([url] * num_sessions, body, num_requests))
    async with GatewayServer() as server:
        addresses = [server.open(Instant()) for _ in range(num_sessions)]
        urls = [f"{address.openai_base_url}/chat/completions" for address in addresses]
        took, elapsed, cpu_s = await requests(Load(urls, body, num_requests))
        for address in addresses:
            await server.close(address)
    floor, p50 = median_ms(constant), median_ms(took)
    p99 = 1000 * statistics.quantiles(took, n=100)[98]
    rate, cpu_ms = num_requests / elapsed, 1000 * cpu_s / num_requests
    print(f"{len(body) / 1000:4.0f} {num_sessions:8} {called:8.3f} {floor:13.3f} {p50:12.3f} {p99:7.2f} "
          f"{rate:10.0f} {cpu_ms:7.3f} {p50 - floor - called:11.3f}")  # fmt: skip


async def call_ms(body: bytes, num_calls: int) -> float:
    """Return the median milliseconds of a call of the session with a parsed request."""
    session, request = Instant(), CHAT_COMPLETIONS.read(read_body(body)).request
    took = [await timed(lambda: session.answer(request)) for _ in range(num_calls)]
    return median_ms(took)


@asynccontextmanager
async def constant_server():
    """Yield the address of an aiohttp server that reads each body and returns a constant answer."""
    answer = dumped(CHAT_COMPLETIONS.read({"messages": [{"role": "user", "content": ""}]}).reply.body(ANSWER))

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def requests(load: Load) -> tuple[list[float], float, float]:
    """Send the requests from another process.

    Return the seconds of each request, the seconds of all requests together, and the CPU seconds of this process.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=client_process, args=(load, sender))
    process.start()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, receiver.recv)  # the clients have connected, and all caches are filled
    used = cpu()
    took, elapsed = await loop.run_in_executor(None, receiver.recv)
    used = cpu() - used
    await loop.run_in_executor(None, process.join)
    return took, elapsed, used


def client_process(load: Load, sender: Any) -> None:
    asyncio.run(send_all(load, sender))


async def send_all(load: Load, sender: Any) -> None:
    async with ClientSession(connector=TCPConnector(limit=0)) as client:

        async def ask(url: str) -> None:
            async with client.post(url, data=load.body) as response:
                await response.read()
                assert response.status == 200, await response.text()

        await asyncio.gather(*map(ask, load.urls))  # opens the connections, and fills the caches of both processes
        sender.send(None)
        left, took = [None] * load.num_requests, list[float]()

        async def worker(url: str) -> None:
            while left:
                left.pop()
                took.append(await timed(lambda: ask(url)))

        started = time.perf_counter()
        await asyncio.gather(*map(worker, load.urls))
        sender.send((took, time.perf_counter() - started))


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def median_ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_a_session(num_sessions: int = 1000) -> float:
    """Return the kilobytes that the server keeps for an open session, without the session itself."""
    server, sessions = GatewayServer(), [Instant() for _ in range(num_sessions)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    addresses = [server.open(session) for session in sessions]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 1000 / len(addresses)


if __name__ == "__main__":
    main()
