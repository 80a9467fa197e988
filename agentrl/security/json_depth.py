"""Parse JSON from a dataset or a model. A limit on the nesting depth protects recursive code that reads the value."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from pydantic import JsonValue

MAX_DEPTH = 100


def parse(text: str | bytes) -> JsonValue:
    """Parse a JSON text.

    Raises:
        ValueError: the text is not JSON, or has more than `MAX_DEPTH` nesting levels.
    """
    try:
        value = cast(JsonValue, json.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if is_too_deep(value, text):
        raise ValueError(_TOO_DEEP)
    return value


def is_too_deep(value: JsonValue, text: str | bytes) -> bool:
    """Whether `value`, parsed from `text`, is nested deeper than `MAX_DEPTH`; uses no recursion."""
    # counting brackets is fast; only the few texts with more than `MAX_DEPTH` brackets need the slow check
    return _num_brackets(text) > MAX_DEPTH and _deeper([value], MAX_DEPTH)


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


def _num_brackets(text: str | bytes) -> int:
    return text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")


def _deeper(level: Iterable[JsonValue], depth: int) -> bool:
    """Whether values are nested deeper than `depth` levels. Iterates over levels, without recursion."""
    for _ in range(depth + 1):
        inner = [each for each in level if isinstance(each, dict | list) and each]
        level = [item for each in inner for item in (each.values() if isinstance(each, dict) else each)]
    return bool(level)
