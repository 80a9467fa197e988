"""Lossless conversion of text and JSON to valid UTF-8 for Parquet files, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

_MARK = "\ufdd0"  # a noncharacter: valid UTF-8, but not used in text
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
    """Make `text` valid UTF-8: replace lone surrogates and U+FDD0 by U+FDD0 followed by the code point's hex digits.

    Lone surrogates occur because a model can write them as JSON escapes, such as `\\ud83d`.

    "a\\ud83d"  ->  "a\\ufdd0d83d"
    """
    if text.isascii() or (_MARK not in text and _is_unicode(text)):
        return text
    return _UNWRITABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def original(text: str) -> str:
    """Undo `writable`."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)), text) if _MARK in text else text


def write_json(value: object) -> str:
    """Return `value` as JSON text; non-finite numbers are written as `NaN`, `Infinity` and `-Infinity`.

    Raises:
        TypeError, ValueError: the value cannot be written as JSON.
    """
    return _deeply(_ENCODER.encode, value)


def read_json(text: str) -> object:
    """Parse the text that `write_json` returned.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return _deeply(json.loads, text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _deeply(function: Callable[[A], B], argument: A) -> B:
    """Call `function`; after a RecursionError, call it again in a new thread, which has an empty stack.

    Tool-call arguments that a model writes may be nested as deeply as the JSON parser allows, so converting them may
    need a complete stack.
    """
    try:
        return function(argument)
    except RecursionError:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, argument).result()
