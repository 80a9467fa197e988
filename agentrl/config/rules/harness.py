"""Rules for `rollout.harness`."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.rollout import HARNESS, RolloutConfig
from agentrl.config.rules.unused import unused, wrong
from agentrl.errors import Kind, Problem

_LOOP = "rollout.agent.default_agent_loop"
_OF_OWN_LOOPS = ("max_tool_calls", "max_parallel_calls", "max_tool_response_length", "tool_response_truncate_side")


def wrong_with_harness(rollout: RolloutConfig) -> Iterator[Problem]:
    """Yield problems with the keys that a harness needs, and with keys that have no effect if there is a harness."""
    if rollout.harness is None:
        if rollout.agent_loop == HARNESS:
            why = "needs `rollout.harness`: a name of configs/harness, or a YAML file"
            yield wrong(_LOOP, why, Kind.MISSING, value=HARNESS)
        return
    if rollout.agent_loop != HARNESS:
        need = f"`{_LOOP}=harness`"
        yield Problem("rollout.harness", Kind.UNUSED, f"`rollout.harness` has no effect without {need}")
        return
    turns = rollout.multi_turn
    if turns.interaction_config_path is not None:
        key = "rollout.multi_turn.interaction_config_path"
        yield Problem(key, Kind.CONFLICT, f"`{key}` does not work with `rollout.harness`: there is no simulated user")
    if turns.thinking == "strip":
        key = "rollout.multi_turn.thinking"
        why = f"`{key}=strip` does not work with `rollout.harness`, which sends its own messages"
        yield Problem(key, Kind.CONFLICT, why)
    yield from unused("rollout.multi_turn", turns, _OF_OWN_LOOPS, "an agent loop of agentrl: a harness runs the tools")
