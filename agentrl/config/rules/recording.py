"""Rules of `agentrl gateway`, which records the conversations of other programs."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.reward import NO_REWARD
from agentrl.config.rules.unused import every, given, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind, Problem

_OF_AGENT_LOOPS = (
    "tool_config_path",
    "function_tool_path",
    "environment",
    "interaction_config_path",
    "max_tool_calls",
    "max_user_turns",
)


def check_recording(config: RunConfig) -> None:
    """Refuse options that `agentrl gateway` would ignore. Options that only training uses are allowed and ignored.

    Raises:
        ConfigError: one line per mistake.
    """
    if problems := list(_wrong(config)):
        raise ConfigError(*problems)


def _wrong(config: RunConfig) -> Iterator[Problem]:
    rollout, data, reward = config.rollout, config.data, config.reward
    other = "an agent loop of agentrl: `agentrl gateway` runs no tools, its clients run them"
    yield from unused("rollout.multi_turn", rollout.multi_turn, _OF_AGENT_LOOPS, other)
    yield from unused("rollout.agent", rollout.agent, ("default_agent_loop", "agent_loop_config_path"), other)
    yield from unused("rollout", rollout, ("harness",), "`agentrl train` or another command that runs it")
    for option in ("train_files", "val_files"):
        if given(data, option):
            yield wrong(
                f"data.{option}", "has no effect in `agentrl gateway`: tasks come from its clients", Kind.UNUSED
            )
    if reward.name != NO_REWARD and any(given(reward, option) for option in every(reward)):
        why = "has no effect in `agentrl gateway`: `POST /rollouts/KEY/end` receives the reward, and"
        yield wrong("reward", f"{why} `agentrl replay RUN rescore` scores saved rollouts", Kind.UNUSED)
    if not config.algorithm.live:
        yield wrong("algorithm.name", "makes no rollouts: remove it", Kind.CONFLICT, value=config.algorithm.name)
