"""The error messages of the configuration rules."""

from __future__ import annotations

from typing import Any

from agentrl.config.rules.combinations import check_rules, check_training
from agentrl.config.run import RunConfig
from agentrl.config.validate import config_fields
from agentrl.errors import ConfigError, Kind, Problem

KEYS = [key for key, _ in config_fields()]


def complaint(**sections: dict[str, Any]) -> str:  # Any: the value of any key
    return "\n".join(problem.line() for problem in problems_of(**sections))


def problems_of(**sections: dict[str, Any]) -> list[Problem]:  # Any: the value of any key
    base = {"data": {"train_files": ["a.jsonl"], "train_batch_size": 8}, "rollout": {"n": 2}}
    config = RunConfig.model_validate({"model": {"path": "m"}, **base, **sections})
    try:
        check_rules(config)
        check_training(config)
    except ConfigError as error:
        problems = error.problems
    else:
        return []
    assert all(map(has_key_and_kind, problems)), problems
    return problems


def keys_and_kinds(problems: list[Problem]) -> set[tuple[str, Kind]]:
    return {(problem.key, problem.kind) for problem in problems}


def has_key_and_kind(problem: Problem) -> bool:
    """Whether the problem names an existing key or section."""
    known = any(f"{key}.".startswith(f"{problem.key}.") or problem.key.startswith(f"{key}.") for key in KEYS)
    return known and problem.kind is not Kind.OTHER
