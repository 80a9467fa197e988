"""A server with the protocol of OpenEnv 0.10: a game in which the model guesses a number. It can misbehave.

The same tests run on a real server of OpenEnv (`test_real_openenv.py`). If the two differ, fix this one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import WSMsgType, web
from served_app import served_app

ACTION = {
    "title": "GuessAction",
    "description": "Guess the number.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "title": "Metadata", "additionalProperties": True},
        "guess": {"type": "integer", "title": "Guess", "description": "from 1 to 9"},
    },
    "required": ["guess"],
}
CALL = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
LOST = object()
"""In place of an answer: the connection is cut."""
SILENT = object()
"""In place of an answer: nothing, until the connection is closed."""


@dataclass
class FakeOpenEnv:
    """What the server does.

    Attributes:
        answers: sent in place of the next answers: text, bytes, LOST or SILENT; None for the right one.
        statuses: answers of `/schema` before the right one.
        received: all messages, in order.
        headers: headers of each connection.
    """

    max_sessions: int = 64
    lists_tools: bool = False
    schema: object = None
    answers: list[object] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    received: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_refused: int = 0
    active: int = 0
    most_active: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/ws", self._connection)
        return app

    async def _schema(self, asked: web.Request) -> web.Response:
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        action = self.schema or (CALL if self.lists_tools else ACTION)
        return web.json_response({"action": action, "observation": {}, "state": {}})

    async def _connection(self, asked: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(asked)
        self.headers.append(dict(asked.headers))
        if self.active >= self.max_sessions:
            self.num_refused += 1
            busy = {"message": "no session left", "code": "CAPACITY_REACHED", "max_sessions": self.max_sessions}
            await socket.send_json({"type": "error", "data": busy})
            await socket.close()
            return socket
        self.active += 1
        self.most_active = max(self.active, self.most_active)
        try:
            await self._serve(socket)
        finally:
            self.active -= 1
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        game = Game()
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                return
            asked = json.loads(message.data)
            self.received.append(asked)
            if asked["type"] == "close":
                break
            answer = self.answers.pop(0) if self.answers else None
            if answer is LOST:
                socket._req.transport.abort()
                return
            if answer is SILENT:
                await asyncio.Event().wait()
            elif isinstance(answer, bytes):
                await socket.send_bytes(answer)
            else:
                await socket.send_str(answer or json.dumps(self._answer(game, asked)))
        await socket.close()

    def _answer(self, game: Game, asked: dict[str, object]) -> dict[str, object]:
        if asked["type"] not in ("reset", "step"):
            return error("UNKNOWN_TYPE")
        data = asked["data"]
        if self.lists_tools:
            return called(data) if asked["type"] == "step" else observed({}, None)
        if asked["type"] == "reset":
            return game.reset(**data)
        return game.step(data)


class Game:
    def __init__(self) -> None:
        self.number = 0

    def reset(self, seed=None, low=1, **_) -> dict[str, object]:
        if not isinstance(low, int):
            return error("EXECUTION_ERROR", message='can only concatenate str (not "int") to str')
        self.number = low + (0 if seed is None else seed) % 9
        return observed({"message": f"Guess a number from {low} to {low + 8}.", "tries": 0}, 0.0)

    def step(self, data: dict[str, object]) -> dict[str, object]:
        if not isinstance(guess := data.get("guess"), int):
            return error("VALIDATION_ERROR", errors=[{"loc": ["guess"], "msg": "Field required", "type": "missing"}])
        if guess < 0:
            return error("EXECUTION_ERROR", message="the guess is negative")
        hint = "right" if guess == self.number else "higher" if guess < self.number else "lower"
        return observed({"message": hint, "tries": 1}, 1.0 if hint == "right" else -0.1, hint == "right")


def called(data: dict[str, object]) -> dict[str, object]:
    if data["type"] == "list_tools":
        return observed({"tools": [ADD]})
    arguments = data["arguments"]
    if arguments.get("a") == 13:
        failure = {"error_type": "execution_error", "message": "Error calling tool 'add': 13 is bad luck"}
        return observed({"tool_name": "add", "result": None, "error": failure})
    total = str(arguments["a"] + arguments["b"])
    result = {"content": [{"type": "text", "text": total}], "data": total, "is_error": False}
    return observed({"tool_name": data["tool_name"], "result": result, "error": None})


def observed(observation: object, reward: object = None, done: object = False) -> dict[str, object]:
    if isinstance(observation, dict):
        observation = {"metadata": {}, **observation}
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def error(code: str, **data: object) -> dict[str, object]:
    return {"type": "error", "data": {"message": "Invalid message", "code": code, **data}}


@contextmanager
def fake_openenv(**options: object) -> Iterator[tuple[str, FakeOpenEnv]]:
    """(the address of a server, its behaviour)."""
    server = FakeOpenEnv(**options)
    with served_app(server.app()) as url:
        yield url, server
