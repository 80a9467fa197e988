"""Validation of a plain dictionary and its conversion to a `RunConfig`."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentrl.config.base import Section
from agentrl.config.rules.combinations import check_rules
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError, Kind, Problem, problems_in, suggestion
from agentrl.security.redaction import holds_redacted

Check: TypeAlias = Callable[[RunConfig], None]


def validate_config(values: Mapping[str, object], *checks: Check) -> RunConfig:
    """Validate nested values and return the configuration.

    Args:
        checks: further rules, each of which raises an AgentRLError with one line per mistake.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), a wrong type or value, or an invalid combination.
            The message lists all mistakes, one per line.
    """
    _refuse_redacted(values)
    checks = (check_rules, *checks)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        invalid = [_explain(each) for each in error.errors()]
        raise ConfigError(*invalid, *_further(values, error.errors(), checks)) from None
    if problems := _problems(config, checks):
        raise ConfigError(*problems)
    return config


def _refuse_redacted(values: Mapping[str, object]) -> None:
    """Refuse placeholders of redacted secrets, which a saved config.yaml contains."""
    if not holds_redacted(values):
        return
    why = "secrets are not saved with a run: set it again,"
    keys = [key for key, value in _leaves(values) if holds_redacted(value)]
    raise ConfigError(*(Problem(key, Kind.MISSING, f"`{key}`: {why} {key}=... or ${{oc.env:NAME}}") for key in keys))


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _problems(config: RunConfig, checks: Sequence[Check]) -> list[Problem]:
    """Return the problems that the checks find, without duplicates."""
    problems: dict[Problem, None] = {}
    for check in checks:
        try:
            check(config)
        except AgentRLError as error:
            problems |= dict.fromkeys(problems_in(error))
    return list(problems)


def _further(values: Mapping[str, object], errors: Sequence[ErrorDetails], checks: Sequence[Check]) -> list[Problem]:
    """Return the problems that remain if the invalid keys are removed. Problems that mention these keys are dropped."""
    wrong = [".".join(map(str, error["loc"])) for error in errors]
    readable: object = values
    for error in errors:
        readable = _without(readable, [str(part) for part in error["loc"]])
    assert isinstance(readable, dict)  # `_without` returns a dict for a mapping
    model = readable.get("model")
    readable["model"] = {"path": "none", **(model if isinstance(model, dict) else {})}
    try:
        config = RunConfig.model_validate(readable)
    except ValidationError:
        return []
    return [problem for problem in _problems(config, checks) if not any(map(problem.mentions, wrong))]


def _without(values: object, place: Sequence[str]) -> object:
    """Return the mapping without the invalid value at `place`."""
    if not isinstance(values, Mapping):
        return values
    name, *rest = place
    inner = values.get(name)
    if rest and isinstance(inner, Mapping) and inner.keys() & {rest[0]}:
        return {**values, name: _without(inner, rest)}
    return {key: value for key, value in values.items() if key != name}


def config_fields(section: type[Section] = RunConfig, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every leaf key in dotted form with its field, in order of definition."""
    for name, field in section.model_fields.items():
        if inner := section_of(field):
            yield from config_fields(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section class of a field, also if it is optional; None for other fields."""
    annotation = field.annotation
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, Section)), None)


def _explain(problem: ErrorDetails) -> Problem:
    place = [str(part) for part in problem["loc"]]
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        return Problem(key, Kind.UNKNOWN_KEY, f"unknown key `{key}`: {_nearest(place)}")
    if problem["type"] == "missing":
        return Problem(required := _required(key), Kind.MISSING, f"`{required}` must be given")
    message = problem["msg"].removeprefix("Value error, ")
    got = "" if isinstance(problem["input"], dict) else f", got {problem['input']!r:.200}"
    text = f"`{key}`: {message[0].lower() + message[1:]}{got}" if key else message
    return Problem(key, Kind.WRONG_VALUE, text)


def _required(key: str) -> str:
    """Return the first required key inside the section `key`; if there is none, return `key`."""
    inside = (name for name, field in config_fields() if name.startswith(f"{key}.") and field.is_required())
    return next(inside, key)


_USUAL = {"max_turns": "max_assistant_turns", "learning_rate": "lr", "num_generations": "n", "group_size": "n"}
"""Key name in other frameworks -> last part of agentrl's key."""


def _nearest(place: list[str]) -> str:
    """Suggest a key or section with the same last part, in any section; otherwise, suggest keys of this section."""
    *parents, leaf = place
    keys = [key for key, _ in config_fields()]
    prefix = "".join(f"{parent}." for parent in parents)
    in_section = {f"{prefix}{key.removeprefix(prefix).split('.')[0]}" for key in keys if key.startswith(prefix)}
    named = (*keys, *dict.fromkeys(key.rpartition(".")[0] for key in keys))
    same_name = [name for name in named if name.rpartition(".")[2] == _USUAL.get(leaf, leaf)]
    return f"did you mean '{same_name[0]}'?" if same_name else suggestion(".".join(place), in_section)
