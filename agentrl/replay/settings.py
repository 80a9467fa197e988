"""The configuration to replay under: what the run kept, without what names code, and over it what the user says now."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.agent_loops.base import agent_loops
from agentrl.config import RunConfig, validate_config
from agentrl.replay.base import Replay

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

_LOOP = "rollout.agent.default_agent_loop"


def replay_config(replay: Replay) -> RunConfig:
    """The kept configuration without `CODE`, with the overrides of the command line.

    Raises:
        ConfigError: it is not valid; where nothing was kept, `model.path` must be given.
    """
    kept: dict[str, object] = dict(replay.run.config)
    for key in CODE:
        kept = _without(kept, key.split("."))
    if not _is_builtin(_lookup(kept, _LOOP)):
        kept = _without(kept, _LOOP.split("."))
    return validate_config(_laid_over(kept, replay.options.overrides))


def _is_builtin(name: object) -> bool:
    return isinstance(name, str) and name in agent_loops.names()


def _without(values: Mapping[str, object], key: list[str]) -> dict[str, object]:
    name, *rest = key
    inner = values.get(name)
    if rest and isinstance(inner, Mapping):
        return {**values, name: _without(inner, rest)}
    return {key: value for key, value in values.items() if rest or key != name}


def _lookup(values: object, key: str) -> object:
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
