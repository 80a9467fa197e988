"""The package verifiers runs a taskset against an endpoint that answers as the gateway does."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest
from aiohttp import web
from peer_environments import ROOT, peer_python
from served_app import served_app

from agentrl.config.data import DataConfig
from agentrl.data.tasks import load_tasks
from agentrl.harness.verifiers import Taskset

pytestmark = pytest.mark.slow
REQUESTS = web.AppKey("requests", list)


@dataclass
class Endpoint:
    base_url: str
    model: str = "policy"


async def chat(asked: web.Request) -> web.StreamResponse:
    """A streamed answer: 2."""
    body = await asked.json()
    asked.app[REQUESTS].append((asked.path, body))
    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await stream.prepare(asked)
    common = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "policy"}
    for delta, reason in (({"role": "assistant", "content": "It is 2."}, None), ({}, "stop")):
        chunk = {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        await stream.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await stream.write(b"data: [DONE]\n\n")
    return stream


@pytest.mark.nightly
def test_rollouts_of_a_taskset(tmp_path):
    sums = Taskset(peer_python("verifiers"), "sums-taskset", env={"PYTHONPATH": str(ROOT / "tests/harness")})
    sums.write_rows(tmp_path / "rows.jsonl")
    tasks = load_tasks([str(tmp_path / "rows.jsonl")], DataConfig())
    assert [task.messages[0]["content"] for task in (tasks[0], tasks[1])] == ["What is 0+1?", "What is 1+1?"]
    app = web.Application()
    app[REQUESTS] = []
    app.router.add_post("/{path:.*}", chat)

    async def main(url):
        endpoints = [Endpoint(f"{url}/s/KEY{number}/v1") for number in range(3)]
        return await asyncio.gather(*(sums.run(tasks[number], each) for number, each in enumerate(endpoints)))

    try:
        with served_app(app) as url:
            assert asyncio.run(main(url)) == [0.0, 1.0, 0.0]
    finally:
        sums.close()
    asked = {path: body["messages"][-1]["content"] for path, body in app[REQUESTS]}
    assert asked == {f"/s/KEY{number}/v1/chat/completions": f"What is {number}+1?" for number in range(3)}
