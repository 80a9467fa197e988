"""The configuration to replay under: what the run kept, without what names code, and over it what the user says now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agentrl.agent_loops.base import agent_loops
from agentrl.agent_loops.loading import read_entries
from agentrl.chat.parsers import tool_parsers
from agentrl.config import RunConfig, validate_config
from agentrl.errors import ConfigError
from agentrl.replay.base import Replay
from agentrl.task import Task

CODE = (
    "model.trust_remote_code",
    "rollout.agent.agent_loop_config_path",
    "rollout.multi_turn.tool_config_path",
    "rollout.multi_turn.function_tool_path",
    "rollout.multi_turn.interaction_config_path",
    "rollout.engine",
    "rollout.script_path",
    "reward.custom_reward_function",
)
"""Keys that name code: what a saved run says of them is left out; only the command line may name code."""

NAMED: Mapping[str, Callable[[str], bool]] = {
    "rollout.agent.default_agent_loop": agent_loops.is_builtin,
    "rollout.multi_turn.format": tool_parsers.is_builtin,
    "model.attn_implementation": str.isidentifier,  # `owner/repository` would be fetched from the hub and run
}
"""Keys that may name code: what a saved run says of them is taken where agentrl itself, or transformers, brings it."""

LOOP_CODE = (
    "model.trust_remote_code",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
    "rollout.multi_turn.format",
    "rollout.multi_turn.interaction_config_path",
)
TOOL_CODE = ("rollout.multi_turn.tool_config_path", "rollout.multi_turn.function_tool_path")
REWARD_CODE = ("reward.custom_reward_function.path",)


def replay_config(replay: Replay) -> RunConfig:
    """The kept configuration without the code it names, with the overrides of the command line.

    Raises:
        ConfigError: it is not valid; where nothing was kept, `model.path` must be given.
    """
    kept: dict[str, object] = dict(replay.run.config)
    for key in (*CODE, *(key for key in NAMED if _names_code(kept, key))):
        kept = _without(kept, key.split("."))
    return validate_config(_laid_over(kept, replay.options.overrides))


def with_model(config: RunConfig, overrides: Mapping[str, object], **instead: str) -> RunConfig:
    """With the model of the command line: a checkpoint brings its adapter, tokenizer and template along.

    So what the run kept of them goes, unless the command line says it.

    Args:
        instead: fields of `model` with what they are where the command line does not say it.
    """
    asked = overrides.get("model")
    said = asked if isinstance(asked, Mapping) else {}
    own = {"lora_rank": 0, "lora_adapter_path": None, "tokenizer_path": None, "chat_template": None, **instead}
    changes = {name: value for name, value in own.items() if name not in said}
    return config.model_copy(update={"model": config.model.model_copy(update=changes)})


def refuse_missing_code(replay: Replay, keys: Iterable[str]) -> None:
    """Refuse to go on without code that the run was made with, as far as `keys` name it.

    Raises:
        ConfigError: for each key that the command line leaves out, what to add.
    """
    kept, given = replay.run.config, replay.options.overrides
    missing = [key for key in keys if _names_code(kept, key) and lookup(given, key) is None]
    if missing:
        raise ConfigError(
            "\n".join(
                f"'{replay.run.name}' was made with {key}={lookup(kept, key)}, and what a run names is not run unasked:"
                f" if you trust it, add {key}={lookup(kept, key)}"
                for key in missing
            )
        )


def refuse_code_of_rows(tasks: Iterable[Task], config: RunConfig) -> None:
    """Refuse rows that name code: an agent loop that is neither built in nor listed in the file the user gave.

    Raises:
        ConfigError: names the row, and what to add.
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


def _names_code(kept: Mapping[str, object], key: str) -> bool:
    said = lookup(kept, key)
    if key in NAMED:
        return said is not None and not (isinstance(said, str) and NAMED[key](said))
    return bool(said)


def _without(values: Mapping[str, object], key: list[str]) -> dict[str, object]:
    name, *rest = key
    inner = values.get(name)
    if rest and isinstance(inner, Mapping):
        return {**values, name: _without(inner, rest)}
    return {key: value for key, value in values.items() if rest or key != name}


def lookup(values: object, key: str) -> object:
    """What nested values hold under a dotted key; None where they do not."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _laid_over(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    result = dict(under)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[name] = _laid_over(below, value) if both else value  # type: ignore[arg-type]  # both are mappings
    return result
