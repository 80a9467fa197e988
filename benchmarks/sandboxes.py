"""Measure starts and calls of sandboxes.

    python benchmarks/sandboxes.py --rollouts 1 32 256 --calls 1000
    python benchmarks/sandboxes.py --peer jupyter     # also Jupyter kernels, in an environment of their own

Each call adds 1 to a variable that is kept between the calls of a rollout. Only `python -c` keeps no variable, because
it starts a new interpreter for each call. E2B's client runs against the test server on this machine: alone, and called
by agentrl. The difference is the time that agentrl adds. The script needs bubblewrap and the extra `e2b`. Run it from a
clone of the repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent / "peers"), str(ROOT / "tests/sandboxes")]

from e2b_server import KEY, e2b_server  # noqa: E402
from environment import peer_python  # noqa: E402

from agentrl.sandboxes.e2b.provider import CodeInterpreter, E2BProvider  # noqa: E402
from agentrl.sandboxes.e2b.settings import E2BSandbox  # noqa: E402
from agentrl.sandboxes.local.sandbox import LocalProvider  # noqa: E402
from agentrl.sandboxes.local.settings import LocalSandbox  # noqa: E402

CODE = "x = globals().get('x', 0) + 1; x"
DEADLINE_S = 60.0
T = TypeVar("T")


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile: about this share of the values is below it."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def show(name: str, starts: Sequence[float], calls: Sequence[float], elapsed_s: float) -> None:
    """Print one line with the times of starts and calls."""
    started = f"start p50 {1e3 * quantile(starts, 0.5):7.1f} ms" if starts else " " * 20
    p50, p99 = (1e3 * quantile(calls, share) for share in (0.5, 0.99))
    print(f"{name:28} {started}   {len(calls) / elapsed_s:7.0f} calls/s   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms")


async def timed(call: Callable[[], Awaitable[T]], into: list[float]) -> T:
    """Await a call, and add its duration to `into`."""
    began = time.perf_counter()
    result = await call()
    into.append(time.perf_counter() - began)
    return result


async def all_at_once(calls: Sequence[Callable[[], Awaitable[object]]], repeats: int) -> tuple[list[float], float]:
    """Run all calls at the same time, each `repeats` times in sequence. Return (durations, total seconds)."""
    times: list[float] = []

    async def repeat(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(repeats):
            await timed(call, times)

    began = time.perf_counter()
    await asyncio.gather(*map(repeat, calls))
    return times, time.perf_counter() - began


async def local(num_rollouts: int, num_calls: int) -> None:
    """Measure local sandboxes, one for each rollout."""
    provider, starts = LocalProvider(LocalSandbox()), list[float]()
    sandboxes = [await timed(provider.start, starts) for _ in range(num_rollouts)]
    try:
        calls = [partial(sandbox.run_python, CODE, DEADLINE_S) for sandbox in sandboxes]
        await all_at_once(calls, 1)  # the interpreters start
        times, elapsed_s = await all_at_once(calls, max(1, num_calls // num_rollouts))
        show(f"local, {num_rollouts} rollouts", starts, times, elapsed_s)
    finally:
        await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))


async def python_c(num_rollouts: int, num_calls: int) -> None:
    """Measure calls that each start a new interpreter."""

    async def call() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", CODE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        await process.communicate()

    times, elapsed_s = await all_at_once([call] * num_rollouts, max(1, num_calls // num_rollouts))
    show(f"python -c, {num_rollouts} rollouts", (), times, elapsed_s)


async def e2b(url: str, num_calls: int) -> None:
    """Measure E2B's client alone and called by agentrl, in turn, so that the machine has the same load for both."""
    provider = E2BProvider(E2BSandbox(api_url=url, sandbox_url=url))
    raw_starts, starts, raw_times, times = list[float](), list[float](), list[float](), list[float]()
    create = partial(CodeInterpreter.create, api_key=KEY, api_url=url, sandbox_url=url)
    raw, ours = await timed(create, raw_starts), await timed(provider.start, starts)
    alone = partial(raw.run_code, CODE, context=await raw.create_code_context())
    below = partial(ours.run_python, CODE, DEADLINE_S)
    await alone()
    await below()
    for _ in range(num_calls):
        await timed(alone, raw_times)
        await timed(below, times)
    show("E2B's client alone", raw_starts, raw_times, sum(raw_times))
    show("E2B's client below agentrl", starts, times, sum(times))
    await raw.kill()
    await ours.kill()


def jupyter(num_rollouts: int, num_calls: int) -> None:
    """Measure Jupyter kernels, one for each rollout."""
    script = Path(__file__).parent / "peers/jupyter_kernels.py"
    command = [peer_python("jupyter"), script, str(num_rollouts), str(num_calls)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    show(f"jupyter_client, {num_rollouts} rollouts", found["starts"], found["calls"], found["elapsed_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--calls", type=int, default=1000, help="number of calls per printed line, over all rollouts")
    parser.add_argument("--peer", choices=["jupyter"], help="measure this system too; it is installed at its first use")
    options = parser.parse_args()
    os.environ["E2B_API_KEY"] = KEY
    for num_rollouts in options.rollouts:
        asyncio.run(local(num_rollouts, options.calls))
        asyncio.run(python_c(num_rollouts, max(num_rollouts, options.calls // 10)))
        if options.peer:
            jupyter(num_rollouts, options.calls)
    with tempfile.TemporaryDirectory() as folder, e2b_server(Path(folder)) as server:
        asyncio.run(e2b(server.url, options.calls))


if __name__ == "__main__":
    main()
