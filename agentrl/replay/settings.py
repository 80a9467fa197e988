"""Configuration of a replay: the saved values that cannot run code, overridden by the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from agentrl.agent_loops.base import agent_loops
from agentrl.agent_loops.loading import read_entries
from agentrl.chat.parsers import AUTO, tool_parsers
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError, Kind, Problem
from agentrl.replay.base import Replay
from agentrl.replay.trusted_config import dropped_values, lookup, trusted_values
from agentrl.types.task import Task

LOOP_CODE = (
    "model.trust_remote_code",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
    "rollout.multi_turn.format",
    "rollout.multi_turn.interaction_config_path",
)
TOOL_CODE = (
    "rollout.multi_turn.tool_config_path",
    "rollout.multi_turn.function_tool_path",
    "rollout.multi_turn.environment",
)
REWARD_CODE = ("reward.custom_reward_function.path",)
CREDIT_CODE = ("algorithm.adv_estimator", "actor.policy_loss.loss_mode")

NO_MODEL = "unknown"
"""Placeholder for `model.path` if the command line names no model. The path saved in a run is never used."""


def replay_config(replay: Replay) -> RunConfig:
    """The trusted part of the saved configuration (`replay.trusted_config`), with the command-line overrides.

    A reward that runs code of the model needs a sandbox that the command line names.

    Raises:
        ConfigError: the configuration is not valid.
    """
    saved = _merged({"model": {"path": NO_MODEL}, "reward": {"sandbox": None}}, trusted_values(replay.run.config))
    try:
        return validate_config(_merged(saved, replay.options.overrides))
    except ConfigError as error:
        _check_saved(replay.run.name, saved)
        raise error from None


def _check_saved(name: str, saved: Mapping[str, object]) -> None:
    try:
        validate_config(saved)
    except ConfigError as error:
        where = f"'{name}': saved configuration: "
        raise ConfigError(*(replace(each, text=where + each.text) for each in error.problems)) from None


def with_model(config: RunConfig, overrides: Mapping[str, object], **defaults: str) -> RunConfig:
    """Return the configuration with the model that the command line names.

    A checkpoint contains its own adapter, tokenizer and chat template. So the keys for these files are used only if
    the command line sets them; saved values are dropped.

    Args:
        defaults: values for fields of `model` that the command line does not set.
    """
    model = overrides.get("model")
    given = model if isinstance(model, Mapping) else {}
    own = {"lora_rank": 0, "lora_adapter_path": None, "tokenizer_path": None, "chat_template": None, **defaults}
    changes = {name: value for name, value in own.items() if name not in given}
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


def refuse_missing_code(replay: Replay, keys: Iterable[str]) -> None:
    """Raise if the run used custom code under one of `keys` and the command line does not name that code.

    Raises:
        ConfigError: the message lists, for each key, the option to add to the command line.
    """
    given, dropped = replay.options.overrides, dropped_values(replay.run.config)
    missing = [key for key in keys if key in dropped and lookup(given, key) is None]
    if missing:
        raise ConfigError(
            *(Problem(key, Kind.MISSING, _missing_code(replay.run.name, f"{key}={dropped[key]}")) for key in missing)
        )


def _missing_code(run: str, option: str) -> str:
    return (
        f"'{run}' uses custom code, {option}. Replay runs only code that the command line names: if you trust it,"
        f" add {option}"
    )


def refuse_code_of_rows(tasks: Iterable[Task], config: RunConfig) -> None:
    """Refuse rows that name code: an unknown agent loop or a tool format that is not built in.

    An agent loop is known if it is built in or listed in `agent_loop_config_path`.

    Raises:
        ConfigError: a row needs unknown code. The message names the row and, for an agent loop, the missing option.
    """
    path = config.rollout.agent.agent_loop_config_path
    known = read_entries(path) if path else {}
    for task in tasks:
        if (name := task.agent_name) is not None and name not in known and not agent_loops.is_builtin(name):
            raise ConfigError.at(
                "rollout.agent.agent_loop_config_path",
                Kind.MISSING,
                f"row {task.index} ('{task.uid}') names the agent loop '{name}', which is not built in: if you trust"
                " it, add rollout.agent.agent_loop_config_path=FILE with an entry of that name",
            )
        tool_format = task.tool_options.tool_format
        if tool_format not in (None, AUTO) and not tool_parsers.is_builtin(tool_format):
            raise ConfigError.at(
                "rollout.multi_turn.format",
                Kind.NOT_SUPPORTED,
                f"row {task.index} ('{task.uid}') names the tool format '{tool_format}', which is not built in",
            )


def _merged(base: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    result = dict(base)
    for name, value in changes.items():
        inner = result.get(name)
        both = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[name] = _merged(inner, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return result
