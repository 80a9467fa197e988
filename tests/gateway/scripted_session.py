"""A session of the gateway that answers as a test says, and HTTP requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import ClientSession

from agentrl.gateway.base import AnswerCall, Finish, TurnAnswer, TurnRequest
from agentrl.gateway.server import Address, GatewayServer

USER = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "policy", "messages": [USER]},
    "responses": {"model": "policy", "input": [USER]},
    "messages": {"model": "policy", "max_tokens": 16, "messages": [USER]},
}
ANSWER = TurnAnswer(
    "turn",
    "Hello",
    "Thoughts",
    (AnswerCall("call", "add", '{"a": 1, "b": 2.0}'),),
    Finish.CALLS,
    num_prompt_tokens=10,
    num_cached_tokens=4,
    num_tokens=5,
)


@dataclass
class ScriptedSession:
    """Answers every request with a numbered copy of `answer`, or raises `error`.

    Attributes:
        gate: an answer waits for it.
        asked: released by each request.
        cancelled: set when an answer is cancelled.
    """

    answer_with: Callable[[TurnRequest], TurnAnswer] = lambda request: ANSWER
    error: Exception | None = None
    gate: asyncio.Event | None = None
    requests: list[TurnRequest] = field(default_factory=list)
    delivered_ids: list[str] = field(default_factory=list)
    asked: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        self.requests.append(request)
        number = len(self.requests)
        self.asked.release()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.error is not None:
            raise self.error
        return replace(self.answer_with(request), turn_id=f"turn_{number}")

    def delivered(self, turn_id: str) -> None:
        self.delivered_ids.append(turn_id)

    def count_tokens(self, request: TurnRequest) -> int:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        return 42


@asynccontextmanager
async def served(session: ScriptedSession, **settings: Any) -> AsyncIterator[tuple[Address, ClientSession]]:
    """The address of a session on a server of its own, and an HTTP client."""
    async with GatewayServer(**settings) as server, ClientSession() as client:
        address = server.open(session)
        yield address, client
        await server.close(address)
