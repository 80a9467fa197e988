"""Interface of a dialect: reads requests, and writes answers and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from agentrl.gateway.base import AnswerCall, Refusal, RequestError, TurnAnswer, TurnRequest
from agentrl.gateway.dialects.fields import JsonObject

NO_NAME = "invalid_call"
"""Name that clients get for a call without a readable name, because clients require a name."""


class Reply(Protocol):
    """Writes the answer in the form that a request asks for."""

    def body(self, answer: TurnAnswer) -> JsonObject:
        """Return the JSON of an answer."""
        ...

    def events(self, answer: TurnAnswer) -> bytes:
        """Return an answer as server-sent events."""
        ...

    def failed(self, failure: Failure) -> bytes:
        """Return the events that end a stream with an error."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request: the request to the model, and the form of the answer that the client wants."""

    request: TurnRequest
    stream: bool
    reply: Reply


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as HTTP status, code and text.

    Attributes:
        code: a short name, which clients check; for example `invalid_api_key`.
    """

    status: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """An endpoint's form of requests and answers.

    Attributes:
        read: function that parses a body; raises `RequestError`.
        error: function that returns the JSON of an error.
        keep_alive: bytes that a stream sends while the model works.
    """

    read: Callable[[JsonValue], Asked]
    error: Callable[[Failure], JsonObject]
    keep_alive: bytes


def failure_of(error: RequestError) -> Failure:
    """Return the HTTP status, code and text for an error of a request."""
    status, code = _FAILURES[error.refusal]
    return Failure(status, code, str(error))


_FAILURES = {
    Refusal.INVALID: (400, "invalid_value"),
    Refusal.KEY: (401, "invalid_api_key"),
    Refusal.TOO_LONG: (400, "context_length_exceeded"),
    Refusal.ENDED: (400, "rollout_ended"),
    Refusal.FAILED: (500, "server_error"),
}


def call_name(call: AnswerCall) -> str:
    """Return the name of a call for clients."""
    return call.name or NO_NAME
