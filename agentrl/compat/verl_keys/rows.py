"""What the table is made of: a verl key is mapped, or has no meaning here, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, suggestion

UNSET = object()
_BOOL = TypeAdapter(bool)


def truth(value: object) -> bool | None:
    """True or false as the configuration reads it, `yes` and `off` too; None where it is neither."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return None


def unchanged(value: object) -> object:
    """The reader of a value that means the same in both."""
    return value


@dataclass(frozen=True, slots=True)
class Mapped:
    """A key of verl's that agentrl honours.

    Args:
        key: verl's.
        targets: agentrl's keys; with several, `read` answers a mapping of them.
        default: verl's, applied where it differs from agentrl's; UNSET leaves agentrl's.
        read: translates a value; raises ConfigError, without naming the key, where it cannot.
        note: a translation that the reader should know of.
    """

    key: str
    targets: tuple[str, ...] | str
    default: object = UNSET
    read: Callable[[Any], object] = unchanged  # a value of any type: Hydra's or the shell's
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """agentrl's keys."""
        return (self.targets,) if isinstance(self.targets, str) else self.targets

    def values(self, value: object) -> dict[str, object]:
        """agentrl's keys and values for a value of verl's."""
        translated = self.read(value)
        if isinstance(self.targets, str):
            return {self.targets: translated}
        return {str(name): item for name, item in translated.items()} if isinstance(translated, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Hint:
    """A key that sizes or places verl's own parts; any value is taken, with one notice. `x.*` is every key under x."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """A key of which agentrl does only `allowed`: anything else could change numbers and is refused.

    Args:
        instead: what to say in place of a refused value.
        notice: said where an allowed value is given; nothing is said if empty.
    """

    key: str
    allowed: tuple[object, ...]
    instead: str
    notice: str = ""

    def allows(self, value: object) -> bool:
        """Whether this value may be said; an empty mapping is verl's null, and text may stand for what it names."""
        said = None if value == {} else value
        if not isinstance(said, str):
            return said in self.allowed
        flag = truth(said)
        return said in map(str, self.allowed) or (flag is not None and any(flag is value for value in self.allowed))


Row = Mapped | Hint | Fixed


def choices(target: str) -> list[str]:
    """The names that an agentrl key takes, from its type."""
    return sorted(_literals(next(field.annotation for key, field in config_fields() if key == target)))


def one_of(target: str, renamed: Mapping[str, str] | None = None) -> Callable[[Any], object]:
    """A reader that takes what `target` takes, some of it under verl's names."""

    def read(value: object) -> object:
        name = (renamed or {}).get(str(value), str(value))
        if name not in choices(target):
            valid = [*choices(target), *(renamed or {})]
            raise ConfigError(f"'{value}' is not in this version: {suggestion(name, valid)}")
        return name

    return read


def _literals(annotation: object) -> set[str]:
    inner = get_args(annotation)
    if not inner:
        return {annotation} if isinstance(annotation, str) else set()
    return set().union(*map(_literals, inner))
