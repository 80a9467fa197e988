"""From a plain dictionary to a `RunConfig`, with errors a person can act on."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.base import Section
from agentrl.config.rules import check_rules
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, suggestion


def validate_config(values: Mapping[str, object]) -> RunConfig:
    """The configuration those nested values describe.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), a wrong type or value, or a combination that some
            chosen part would not honour. One line a mistake, all of them at once.
    """
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(map(_explain, error.errors()))) from None
    check_rules(config)
    return config


def config_fields(section: type[Section] = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every leaf key in dotted form with its field, in the order they are written."""
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            yield from config_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section a field holds, if it holds one (an optional one counts)."""
    annotation = field.annotation
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, Section)), None)


def _explain(problem: ErrorDetails) -> str:
    place = [str(part) for part in problem["loc"]]
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{key}': {_nearest(place)}"
    if problem["type"] == "missing":
        return f"'{_required(key)}' must be given"
    message = problem["msg"].removeprefix("Value error, ")
    got = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r}"
    return f"'{key}': {message[0].lower() + message[1:]}{got}" if key else message


def _required(key: str) -> str:
    """The first key that must be given in a section of that name, else the key."""
    inside = (name for name, field in config_fields() if name.startswith(f"{key}.") and field.is_required())
    return next(inside, key)


def _nearest(place: list[str]) -> str:
    """The same leaf in another section, else the nearest key of this one, else all of its keys."""
    *parents, leaf = place
    keys = [key for key, _ in config_fields()]
    prefix = "".join(f"{parent}." for parent in parents)
    siblings = {f"{prefix}{key.removeprefix(prefix).split('.')[0]}" for key in keys if key.startswith(prefix)}
    elsewhere = [key for key in keys if key.rsplit(".", 1)[-1] == leaf]
    return f"did you mean '{elsewhere[0]}'?" if elsewhere else suggestion(".".join(place), siblings)
