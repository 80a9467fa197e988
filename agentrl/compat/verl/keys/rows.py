"""Row types of the key table: a verl key is mapped, ignored or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from agentrl.capabilities import backend_names, engine_names
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, suggestion

UNSET = object()
_BOOL = TypeAdapter(bool)


def truth(value: object) -> bool | None:
    """Parse a boolean as the configuration does, including `yes` and `off`; return None if it is no boolean."""
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return None


def unchanged(value: object) -> object:
    """Return the value unchanged, because it has the same meaning in verl and agentrl."""
    return value


def checked_only(read: Callable[[Any], object] = bool) -> Callable[[Any], dict[str, object]]:  # Any: as in Mapped
    """Return a reader that only checks the value. The value is translated later, when engine and backend are known."""

    def checked(value: object) -> dict[str, object]:
        read(value)
        return {}

    return checked


@dataclass(frozen=True, slots=True)
class Mapped:
    """A verl key that agentrl supports.

    Args:
        key: verl's key.
        targets: agentrl's key, or a tuple of keys. With a tuple, `read` returns a mapping from key to value.
        default: verl's default, applied if the key is not given; UNSET keeps agentrl's default.
        read: translates a value; raises ConfigError, without the key's name, for invalid values.
        note: remark about the translation, for the documentation.
    """

    key: str
    targets: tuple[str, ...] | str
    default: object = UNSET
    read: Callable[[Any], object] = unchanged  # Any: a value from Hydra or the shell
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """agentrl's keys as a tuple."""
        return (self.targets,) if isinstance(self.targets, str) else self.targets

    def values(self, value: object) -> dict[str, object]:
        """Translate a verl value to agentrl's keys and values."""
        translated = self.read(value)
        if isinstance(self.targets, str):
            return {self.targets: translated}
        return {str(name): item for name, item in translated.items()} if isinstance(translated, Mapping) else {}


@dataclass(frozen=True, slots=True)
class Hint:
    """A verl key that is ignored with a notice, whatever its value. `x.*` matches every key under x."""

    key: str
    why: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """A verl key with only some supported values. Other values could change results and are refused.

    Args:
        instead: what to use in place of a refused value.
        notice: message for an allowed value; if empty, there is no message.
    """

    key: str
    allowed: tuple[object, ...]
    instead: str
    notice: str = ""

    def allows(self, value: object) -> bool:
        """Whether the value is allowed. An empty mapping counts as null, and text such as `no` as a boolean."""
        given = None if value == {} else value
        if not isinstance(given, str):
            return given in self.allowed
        flag = truth(given)
        return given in map(str, self.allowed) or (flag is not None and any(flag is value for value in self.allowed))


Row = Mapped | Hint | Fixed


_REGISTERED = {"rollout.engine": engine_names, "actor.backend": backend_names}


def choices(target: str) -> list[str]:
    """Valid values of an agentrl key: the names in its registry, or the literals of its type."""
    return sorted(_REGISTERED[target]()) if target in _REGISTERED else sorted(_literals(_annotations()[target]))


@cache
def _annotations() -> Mapping[str, object]:
    return {key: field.annotation for key, field in config_fields()}


def one_of(target: str, renamed: Mapping[str, str] | None = None) -> Callable[[Any], object]:
    """Return a reader that accepts the valid values of the key `target`, and replaces verl's names in `renamed`."""

    def read(value: object) -> object:
        name = (renamed or {}).get(str(value), str(value))
        if name not in choices(target):
            valid = [*choices(target), *(renamed or {})]
            raise ConfigError.keyless(f"'{value}' is not supported: {suggestion(name, valid)}")
        return name

    return read


def _literals(annotation: object) -> set[str]:
    inner = get_args(annotation)
    if not inner:
        return {annotation} if isinstance(annotation, str) else set()
    return set().union(*map(_literals, inner))
