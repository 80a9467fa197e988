"""Text and JSON as a Parquet file can hold them, read back unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

_MARK = "\ufdd0"  # a noncharacter: valid UTF-8 that no text has a use for
_UNWRITABLE = re.compile(f"[\ud800-\udfff{_MARK}]")
_WRITTEN = re.compile(f"{_MARK}([0-9a-f]{{4}})")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)


def writable(text: str) -> str:
    """`text` in valid UTF-8: half a surrogate pair, which JSON may escape and a model may write, as U+FDD0 and its hex.

    "a\\ud83d"  ->  "a\\ufdd0d83d"
    """
    if text.isascii() or (_MARK not in text and _is_unicode(text)):
        return text
    return _UNWRITABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def original(text: str) -> str:
    """What `writable` was given."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text) if _MARK in text else text


def write_json(value: object) -> str:
    """`value` as JSON text; numbers that are not finite as `NaN` and `Infinity`.

    Raises:
        TypeError, ValueError: it is not JSON.
    """
    return _deeply(_ENCODER.encode, value)


def read_json(text: str) -> object:
    """What `write_json` was given.

    Raises:
        ValueError: the text is not JSON.
    """
    return _deeply(json.loads, text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _deeply(function: Callable[[A], B], argument: A) -> B:
    """On a stack of its own where this one is too short: a model's arguments may be nested as deep as a parser goes."""
    try:
        return function(argument)
    except RecursionError:
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(function, argument).result()
