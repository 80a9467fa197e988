"""A harness for tests, on a task folder: it runs each answer of the model as a command. Standard library only."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from typing import Any  # Any: JSON


def ask(endpoint: Any, messages: list[dict[str, Any]]) -> str:
    """Return the model's answer."""
    body = json.dumps({"model": endpoint.model, "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


class Shortly:
    """An endpoint whose commands have one second."""

    def __init__(self, endpoint: Any) -> None:
        self.base_url, self.key, self.model, self._endpoint = endpoint.base_url, endpoint.key, endpoint.model, endpoint

    async def run_command(self, command: str, timeout_s: float) -> Any:
        """Run a command."""
        return await self._endpoint.run_command(command, timeout_s=min(timeout_s, 1.0))


async def run(task: Any, endpoint: Any) -> None:
    """Run commands until the model answers `done`."""
    messages = [{"role": "user", "content": task.instruction}]
    while (command := await asyncio.to_thread(ask, endpoint, messages)) != "done":
        result = await endpoint.run_command(command, timeout_s=30)
        text = f"{result.exit_code} {result.timed_out} {result.output}"
        messages += [{"role": "assistant", "content": command}, {"role": "user", "content": text}]


async def run_shortly(task: Any, endpoint: Any) -> None:
    """Run commands of at most one second."""
    await run(task, Shortly(endpoint))


async def threads(task: Any, endpoint: Any) -> None:
    """Do the same in a thread, as a library without coroutines does."""
    loop = asyncio.get_running_loop()

    def agent() -> None:
        messages = [{"role": "user", "content": task.instruction}]
        while (command := ask(endpoint, messages)) != "done":
            result = asyncio.run_coroutine_threadsafe(endpoint.run_command(command), loop).result()
            messages += [{"role": "assistant", "content": command}, {"role": "user", "content": result.output}]

    await asyncio.to_thread(agent)


async def acts(task: Any, endpoint: Any) -> object:
    """Do what the model says, after one turn."""
    action = await asyncio.to_thread(ask, endpoint, [{"role": "user", "content": task.instruction}])
    if action == "raise":
        raise KeyError(f"with {endpoint.key}")
    if action == "exit":
        sys.exit("no more")
    if action == "die":
        sys.stderr.write(f"out of memory with {endpoint.key}\n")
        sys.stderr.flush()
        os.abort()
    if action == "print":
        print('{"id": 0, "returned": 1}', flush=True)
        os.write(1, b"[" * 10_000)
        await asyncio.to_thread(subprocess.run, ["sh", "-c", "echo garbage; cat"], check=True)
        return 0.25
    if action == "block":
        await asyncio.to_thread(__import__("time").sleep, 1000)
    if action == "sleep":
        await endpoint.run_command("touch begun; sleep 1000", timeout_s=900)
    if action == "long":
        await endpoint.run_command("x" * 2**21)
    if action == "late":
        task = asyncio.ensure_future(endpoint.run_command("sleep 0.2; echo 7 > n.txt"))
        await asyncio.sleep(0)
        del task
    return {"score": 0.5, "nan": float("nan"), "text": "good", "huge": 10**400, "true": True}.get(action)


async def tells(task: Any, endpoint: Any) -> None:
    """Ask the model with everything that the function knows."""
    told = {
        "task": [task.instruction, task.messages, task.extra_info, task.index, task.uid, task.data_source],
        "truth": task.ground_truth,
        "own": os.environ.get("OWN"),
        "secret": os.environ.get("SECRET"),
        "agentrl": "agentrl" in sys.modules,
        "input": sys.stdin.read(),
    }
    await asyncio.to_thread(ask, endpoint, [{"role": "user", "content": json.dumps(told)}])


def plain(task: Any, endpoint: Any) -> None:
    """Is no coroutine function."""
