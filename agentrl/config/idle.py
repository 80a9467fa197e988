"""What a rule says of an option that would change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from agentrl.config.base import Section


def unused(where: str, section: Section, options: tuple[str, ...], need: str) -> Iterator[str]:
    """A line for each of the options that is given, though it needs something else."""
    for option in filter(partial(given, section), options):
        yield f"'{where}.{option}' has no effect without {need}"


def beside(where: str, section: Section, option: str, stronger: str) -> Iterator[str]:
    """A line where the option is given beside one that takes its place."""
    if given(section, option):
        yield f"'{where}.{option}' has no effect beside {stronger}"


def given(section: Section, option: str) -> bool:
    """Whether it differs from its default."""
    return bool(getattr(section, option) != type(section).model_fields[option].get_default())


def every(section: Section) -> tuple[str, ...]:
    """All its options."""
    return tuple(type(section).model_fields)
