"""Location of an error in the user's code, for one-line error messages."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path

_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_NOT_THE_USERS = ("<frozen ", "<string>", *(f"{folder}{os.sep}" for folder in (Path(__file__).parents[1], *_LIBRARIES)))


def format_error(error: BaseException) -> str:
    """Return `Type: message (file:line)` on one line; the location is the innermost line of user code, if any."""
    text = error.msg if isinstance(error, SyntaxError) else _text(error)
    place = _place(error)
    return " ".join(f"{type(error).__name__}: {text}".split()) + (f" ({place})" if place else "")


def defined_at(function: Callable[..., object]) -> str:
    """Return ` (file:line)` of a user's function; empty for agentrl's functions and functions without source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(_NOT_THE_USERS):
        return ""
    return f" ({code.co_filename}:{code.co_firstlineno})"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's exception class may do anything
        return "(its text cannot be shown)"


def _place(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"  # the file with the syntax error, not the file that imports it
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
