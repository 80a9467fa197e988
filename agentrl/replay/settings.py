"""Configuration of a replay: the saved values that name no code, then the overrides of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.agent_loops.base import agent_loops
from agentrl.agent_loops.loading import read_entries
from agentrl.chat.parsers import tool_parsers
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError
from agentrl.replay.base import Replay
from agentrl.replay.trusted_config import left_out, lookup, taken
from agentrl.types.task import Task

LOOP_CODE = (
    "model.trust_remote_code",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
    "rollout.multi_turn.format",
    "rollout.multi_turn.interaction_config_path",
)
TOOL_CODE = ("rollout.multi_turn.tool_config_path", "rollout.multi_turn.function_tool_path")
REWARD_CODE = ("reward.custom_reward_function.path",)
CREDIT_CODE = ("algorithm.adv_estimator", "actor.policy_loss.loss_mode")

NO_MODEL = "unknown"
"""`model.path` if the command line names no model: the path saved in a run is never used."""


def replay_config(replay: Replay) -> RunConfig:
    """The trusted part of the saved configuration (`replay.trusted_config`), with the command-line overrides.

    Raises:
        ConfigError: the configuration is not valid.
    """
    kept = _laid_over({"model": {"path": NO_MODEL}}, taken(replay.run.config))
    try:
        return validate_config(_laid_over(kept, replay.options.overrides))
    except ConfigError as error:
        _refuse_kept(replay.run.name, kept)
        raise error from None


def _refuse_kept(name: str, kept: Mapping[str, object]) -> None:
    try:
        validate_config(kept)
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError("\n".join(f"'{name}': the configuration that it kept: {line}" for line in lines)) from None


def with_model(config: RunConfig, overrides: Mapping[str, object], **instead: str) -> RunConfig:
    """Return the configuration with the model of the command line.

    A checkpoint contains its own adapter, tokenizer and chat template. So the run's saved values for these are
    dropped, unless the command line sets them.

    Args:
        instead: values for fields of `model` that the command line does not set.
    """
    asked = overrides.get("model")
    said = asked if isinstance(asked, Mapping) else {}
    own = {"lora_rank": 0, "lora_adapter_path": None, "tokenizer_path": None, "chat_template": None, **instead}
    changes = {name: value for name, value in own.items() if name not in said}
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


def refuse_missing_code(replay: Replay, keys: Iterable[str]) -> None:
    """Raise if the run used custom code under one of `keys` and the command line does not name that code.

    Raises:
        ConfigError: for each missing key, what to add to the command line.
    """
    kept, given = replay.run.config, replay.options.overrides
    untaken = left_out(kept)
    missing = [key for key in keys if key in untaken and lookup(given, key) is None]
    if missing:
        raise ConfigError(
            "\n".join(
                f"'{replay.run.name}' was made with {key}={untaken[key]}, and what a run names is not run unasked:"
                f" if you trust it, add {key}={untaken[key]}"
                for key in missing
            )
        )


def refuse_code_of_rows(tasks: Iterable[Task], config: RunConfig) -> None:
    """Refuse rows that name code: an unknown agent loop or a tool format that is not built in.

    An agent loop is known if it is built in or listed in `agent_loop_config_path`.

    Raises:
        ConfigError: names the row, and for an agent loop what to add.
    """
    path = config.rollout.agent.agent_loop_config_path
    known = read_entries(path) if path else {}
    for task in tasks:
        if (name := task.agent_name) is not None and name not in known and not agent_loops.is_builtin(name):
            raise ConfigError(
                f"row {task.index} ('{task.uid}') names the agent loop '{name}', and what a row names is not run"
                " unasked: add rollout.agent.agent_loop_config_path=FILE with an entry of that name"
            )
        written = task.tool_options.tool_format
        if written is not None and not tool_parsers.is_builtin(written):
            raise ConfigError(f"row {task.index} ('{task.uid}') names a tool format that is not built in, '{written}'")


def _laid_over(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[name] = _laid_over(below, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return result
