"""Parses and checks the bodies of requests that open and end rollouts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from agentrl.errors import suggestion
from agentrl.gateway.recording.groups import TaskFacts
from agentrl.security.bounded_json import UnreadableAnswerError, read_json

MAX_BODY = 2**20
"""Maximum size of a body in bytes."""
KEY = re.compile(r"[A-Za-z0-9_-]{16,128}")
SCORE = "score"
"""Name of the reward that is trained on."""


class BodyError(ValueError):
    """The body of a request cannot be used. The error's text is one line that names the field."""


class OpenBody(NamedTuple):
    """Body of a request that opens a group."""

    facts: TaskFacts
    keys: tuple[str, ...] = ()


def read_open(body: bytes) -> OpenBody:
    """Read `{"keys": [...], "ground_truth": ..., "data_source": ..., "extra_info": {...}}`; all fields are optional.

    Raises:
        BodyError: a field is unknown or has a wrong value.
    """
    fields = _object(body, ("keys", "ground_truth", "data_source", "extra_info"))
    source, extra = fields.get("data_source", "gateway"), fields.get("extra_info", {})
    if not isinstance(source, str) or not source:
        raise BodyError(f"data_source: expected text, got {_short(source)}")
    if not isinstance(extra, dict):
        raise BodyError(f"extra_info: expected an object, got {_short(extra)}")
    return OpenBody(TaskFacts(fields.get("ground_truth"), source, extra), _keys(fields.get("keys", [])))


def read_end(body: bytes) -> dict[str, float]:
    """Read `{"reward": 1.0, "rewards": {"style": 0.5}}`; return the rewards by name. `reward` is the score.

    Raises:
        BodyError: a field is unknown, or a reward is not a finite number.
    """
    fields = _object(body, ("reward", "rewards"))
    named = fields.get("rewards", {})
    if not isinstance(named, dict):
        raise BodyError(f"rewards: expected an object of numbers, got {_short(named)}")
    found = {name: _finite(value, f"rewards.{name}") for name, value in named.items()}
    if fields.get("reward") is None:
        return found
    if SCORE in found:
        raise BodyError(f"reward: rewards.{SCORE} sets the same value: give only one of the two")
    return {SCORE: _finite(fields["reward"], "reward"), **found}


def _object(body: bytes, known: Collection[str]) -> Mapping[str, JsonValue]:
    try:
        value = read_json(body) if body.strip() else {}
    except UnreadableAnswerError as error:
        raise BodyError(f"the body cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise BodyError(f"expected an object, got {_short(value)}")
    for name in value:
        if name not in known:
            raise BodyError(f"unknown field '{name[:60]}': {suggestion(name[:60], known)}")
    return value


def _keys(value: JsonValue) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BodyError(f"keys: expected a list of texts, got {_short(value)}")
    for number, key in enumerate(value):
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise BodyError(f"keys[{number}]: expected 16 to 128 letters, digits, '-' and '_'")
    return tuple(str(key) for key in value)


def _finite(value: JsonValue, name: str) -> float:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number):
        raise BodyError(f"{name[:80]}: expected a finite number, got {_short(value)}")
    return number


def _short(value: JsonValue) -> str:
    return f"{value!r:.60}"
