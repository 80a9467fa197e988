"""Builders of `Problem`s: options without effect, and wrong values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from agentrl.config.base import Section
from agentrl.errors import Kind, Problem

_EARLIER_DEFAULTS = {"max_num_seqs": 128}
"""Defaults of earlier versions, which saved these values in config.yaml although no user had set them."""


def unused(where: str, section: Section, options: tuple[str, ...], need: str) -> Iterator[Problem]:
    """Yield one error per given option; `need` is the setting without which the options have no effect."""
    for option in filter(partial(given, section), options):
        yield Problem(f"{where}.{option}", Kind.UNUSED, f"`{where}.{option}` has no effect without {need}")


def unused_with(where: str, section: Section, options: tuple[str, ...], other: str) -> Iterator[Problem]:
    """Yield one error per given option; `other` is the setting with which the options have no effect."""
    for option in filter(partial(given, section), options):
        yield Problem(f"{where}.{option}", Kind.UNUSED, f"`{where}.{option}` has no effect together with {other}")


def wrong(key: str, text: str, kind: Kind = Kind.WRONG_VALUE, *, value: object = None) -> Problem:
    """Return a problem whose text starts with `key`, or with `key=value` if `value` is given."""
    return Problem(key, kind, f"`{key if value is None else f'{key}={value}'}` {text}")


def given(section: Section, option: str) -> bool:
    """Whether the option differs from its default, and from its default in earlier versions."""
    value, usual = getattr(section, option), type(section).model_fields[option].get_default()
    return bool(value not in (usual, _EARLIER_DEFAULTS.get(option, usual)))


def every(section: Section) -> tuple[str, ...]:
    """Names of all options of the section."""
    return tuple(type(section).model_fields)
