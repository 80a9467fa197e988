"""A resources server with the protocol of NeMo-Gym 0.4: a counter for each session. It can misbehave.

The same tests run on a real server of NeMo-Gym (`test_real_nemo_gym.py`). If the two differ, fix this one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from aiohttp import web
from served_app import served_app

TOOLS = [
    {
        "type": "function",
        "name": "increment_counter",
        "description": "Add to the counter.",
        "parameters": {
            "type": "object",
            "properties": {"count": {"type": "integer", "description": ""}},
            "required": ["count"],
            "additionalProperties": False,
        },
        "strict": True,
    },
    {
        "type": "function",
        "name": "get_counter_value",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
        "strict": True,
    },
]
SILENT = object()
"""In place of an answer: nothing."""


def row(initial: int = 3, expected: int = 6, tools: object = TOOLS, **columns: object) -> dict[str, object]:
    asked = [{"role": "user", "content": f"Bring the counter to {expected}."}]
    params = {"input": asked, **({"tools": tools} if tools else {})}
    return {"responses_create_params": params, "initial_count": initial, "expected_count": expected, **columns}


def rows_file(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows or (row(),)))
    return path


@dataclass
class FakeNemoGym:
    """What the server does.

    Attributes:
        faults: path -> what is answered in place of the next answers: a status, a text or SILENT.
        counters: cookie -> value.
        received: path and body of each request.
        num_cookies: further cookies that each call sets.
        seen: number of cookies of each call.
    """

    faults: dict[str, list[object]] = field(default_factory=dict)
    paths: list[str] | None = None
    counters: dict[str, int] = field(default_factory=dict)
    received: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    num_cookies: int = 0
    seen: list[int] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._note])
        app.router.add_get("/openapi.json", self._openapi)
        for name in ("seed_session", "increment_counter", "get_counter_value", "verify"):
            app.router.add_post(f"/{name}", getattr(self, f"_{name}"))
        return app

    def bodies(self, path: str) -> list[dict[str, object]]:
        """The bodies that `path` got."""
        return [body for given, body in self.received if given == path]

    @web.middleware
    async def _note(self, asked: web.Request, handler: object) -> web.StreamResponse:
        fault = (self.faults.get(asked.path) or [None]).pop(0)
        if asked.method == "POST":
            self.received.append((asked.path, await asked.json()))
        if fault is SILENT:
            await asyncio.Event().wait()
        if isinstance(fault, int):
            return web.json_response({"detail": "in trouble"}, status=fault)
        return web.Response(text=fault) if isinstance(fault, str) else await handler(asked)

    async def _openapi(self, asked: web.Request) -> web.Response:
        paths = self.paths or ["/seed_session", "/verify", "/increment_counter", "/get_counter_value"]
        return web.json_response({"paths": {path: {} for path in paths}})

    async def _seed_session(self, asked: web.Request) -> web.Response:
        body = await asked.json()
        if "initial_count" not in body:
            return web.json_response({"detail": [{"loc": ["body", "initial_count"], "msg": "required"}]}, status=422)
        name = f"session{len(self.counters)}"
        self.counters[name] = body["initial_count"]
        answer = web.json_response({})
        answer.set_cookie("counter", name)
        return answer

    async def _increment_counter(self, asked: web.Request) -> web.Response:
        body = await asked.json()
        if body["count"] < 0:
            return compact({"detail": "count must not be negative"}, status=422)
        self.counters[asked.cookies["counter"]] += body["count"]
        self.seen.append(len(asked.cookies))
        answer = compact({"success": True})
        for number in range(self.num_cookies):
            answer.set_cookie(f"further{number}", "x")
        return answer

    async def _get_counter_value(self, asked: web.Request) -> web.Response:
        return compact({"count": self.counters[asked.cookies["counter"]]})

    async def _verify(self, asked: web.Request) -> web.Response:
        body = await asked.json()
        if not all("strict" in tool for tool in body["responses_create_params"].get("tools", ())):
            return compact({"detail": [{"loc": ["body", "responses_create_params", "tools", 0, "strict"]}]}, status=422)
        reward = float(self.counters[asked.cookies["counter"]] == body["expected_count"])
        return web.json_response({**body, "reward": reward})


def compact(content: object, status: int = 200) -> web.Response:
    return web.json_response(content, status=status, dumps=partial(json.dumps, separators=(",", ":")))


@contextmanager
def fake_nemo_gym(**options: object) -> Iterator[tuple[str, FakeNemoGym]]:
    """(the address of a server, its behaviour)."""
    server = FakeNemoGym(**options)
    with served_app(server.app()) as url:
        yield url, server
