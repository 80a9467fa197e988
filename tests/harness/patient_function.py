"""A function of a harness for whole runs on task folders: each call of the model writes a file, after any pause."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import urllib.request
from typing import Any  # Any: JSON

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Look.", "parameters": {"type": "object"}}}
    for name in ("waits", "blocks")
]


def ask(endpoint: Any, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's message."""
    body = json.dumps({"model": endpoint.model, "messages": messages, "tools": TOOLS}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"}
    request = urllib.request.Request(f"{endpoint.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


async def run(task: Any, endpoint: Any) -> None:
    """Answer calls until there are none, at most four times."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.instruction}]
    for _ in range(4):
        messages.append(message := await asyncio.to_thread(ask, endpoint, messages))
        for call in message.get("tool_calls") or []:
            await asyncio.sleep(random.SystemRandom().random() * 0.02)
            result = await endpoint.run_command(f"echo {len(call['function']['arguments'])} >> log; wc -c < log")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.output.strip()})
        if not message.get("tool_calls"):
            break


async def stays(task: Any, endpoint: Any) -> None:
    """Leave a process running that has the mark of the row."""
    subprocess.Popen(["bash", "-c", "sleep 1000; :", task.instruction])  # noqa: ASYNC220  # it does not block
    await asyncio.sleep(1000)
