"""Reads the messages of an OpenEnv server. The content of the messages is not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import InfraError
from agentrl.tools.environment_servers.base import finite

_SHOWN_ERRORS, _SHOWN_CHARS = 5, 1000
METADATA = "metadata"
"""A field that every action and every observation has, and that is often empty."""
BUSY = "CAPACITY_REACHED"
"""Error code: the server has no free session."""
REFUSED = "VALIDATION_ERROR"
"""Error code: the action, or the arguments of reset, do not match the schema."""
FAILED = "EXECUTION_ERROR"
"""Error code: the environment's code raised an exception."""


class ErrorReplyError(Exception):
    """The server answered with an error. `code` is the server's error code, such as `BUSY`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Observed:
    """An observation, its reward, and whether the episode has ended."""

    observation: Mapping[str, JsonValue]
    reward: float | None
    done: bool


def read_message(text: str) -> Observed:
    """Read the answer to `reset` or `step`.

    Raises:
        ErrorReplyError: the answer is an error.
        InfraError: the answer is not an OpenEnv message.
    """
    try:
        message = read_json(text)
    except UnreadableAnswerError as error:
        raise InfraError(f"the server sent {error}") from None
    kind, data = (message.get("type"), message.get("data")) if isinstance(message, dict) else (None, None)
    if kind == "error" and isinstance(data, dict):
        raise ErrorReplyError(str(data.get("code")), _error_text(data))
    if kind != "observation" or not isinstance(data, dict):
        raise InfraError(f"expected a message with an observation, the server sent {text[:200]!r:.120}")
    return _observed(data)


def _observed(data: Mapping[str, JsonValue]) -> Observed:
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
    if not isinstance(observation, dict):
        raise InfraError(f"expected an object as 'observation', the server sent {observation!r:.100}")
    if not isinstance(done, bool):
        raise InfraError(f"expected true or false as 'done', the server sent {done!r:.100}")
    if not observation.get(METADATA):
        observation = {name: value for name, value in observation.items() if name != METADATA}
    return Observed(observation, None if reward is None else finite(reward), done)


def _error_text(data: Mapping[str, JsonValue]) -> str:
    errors = data.get("errors")
    found = [_one_error(each) for each in errors[:_SHOWN_ERRORS]] if isinstance(errors, list) else []
    text = "; ".join(found) or data.get("message") or data.get("code")
    return str(text)[:_SHOWN_CHARS]


def _one_error(error: JsonValue) -> str:
    """Return the text of one of pydantic's validation errors."""
    if not isinstance(error, dict):
        return str(error)
    place = error.get("loc")
    name = ".".join(map(str, place)) if isinstance(place, list) else ""
    return f"'{name}': {error.get('msg')}" if name else str(error.get("msg"))


def observation_text(observation: Mapping[str, JsonValue], field: str | None) -> str:
    """Return the text for the model: the field named `field`.

    If `field` is None, an observation whose only field is a text becomes this text. Any other observation becomes JSON.

    Raises:
        InfraError: the observation does not have the field.
    """
    if field is not None and field not in observation:
        raise InfraError(f"the observation has no field '{field}', only {', '.join(observation) or 'none'}"[:300])
    if field is None and len(observation) == 1 and isinstance(only := next(iter(observation.values())), str):
        return only
    shown: JsonValue = dict(observation) if field is None else observation[field]
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
