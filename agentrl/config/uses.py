"""Marks of configuration keys: side effects of a key's value, such as running code or contacting a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from pydantic import JsonValue
from pydantic.fields import FieldInfo


class Use(StrEnum):
    """Effect of a value. If somebody else may have created a run, commands use only the run's PLAIN values."""

    PLAIN = "plain"
    """A text without effect outside the run, such as a column name."""
    CODE = "code"
    """Code, a name of code, or options of started programs."""
    PLACE = "place"
    """A file or folder that is read or written, or a name on the hub."""
    ADDRESS = "address"
    """A server that is contacted, or the environment variable of a credential."""
    SECRET = "secret"
    """A secret, which is never shown."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a key: the effect of its value.

    Attributes:
        component: with CODE: the kind of component that the value names, such as "agent loop". If the value names a
            built-in component of this kind, it counts as PLAIN instead of CODE.
    """

    use: Use
    component: str = ""


def code(component: str = "") -> Mark:
    """Return the mark of a key that names code. `component`: see `Mark`."""
    return Mark(Use.CODE, component)


PLAIN, PLACE, ADDRESS, SECRET = Mark(Use.PLAIN), Mark(Use.PLACE), Mark(Use.ADDRESS), Mark(Use.SECRET)

Text = Annotated[str, PLAIN]
Options = Annotated[dict[str, JsonValue], PLAIN]
File = Annotated[Path, PLACE]
Folder = Annotated[str, PLACE]
"""A folder or a name on the hub."""

_HARMLESS = (int, float, bool, type(None))


def mark_of(field: FieldInfo) -> Mark:
    """Return the mark of a leaf key. Numbers, booleans and literals without a mark are PLAIN.

    Raises:
        TypeError: the type has several marks, or it has no mark although it contains texts, paths or mappings.
    """
    marks = {each for each in field.metadata if isinstance(each, Mark)} or set(_marks(field.annotation))
    if len(marks) > 1:
        marks -= {PLAIN}  # in a union, the type whose mark is not PLAIN decides
    if len(marks) != 1:
        raise TypeError(f"expected one mark of agentrl.config.uses, found {len(marks)} in {field.annotation}")
    return marks.pop()


def _marks(annotation: object) -> Iterator[Mark]:
    """Yield the marks of a type and of the types inside it."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        own = [each for each in inner[1:] if isinstance(each, Mark)]
        yield from own or _marks(inner[0])
    elif annotation in _HARMLESS or get_origin(annotation) is Literal:
        yield PLAIN
    elif inner and annotation != JsonValue:
        for each in inner:
            if each is not Ellipsis:
                yield from _marks(each)
    else:
        raise TypeError(f"{annotation} needs a mark of agentrl.config.uses that says how its value is used")
