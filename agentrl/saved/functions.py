"""Python functions for saved rollouts: `rescore`, `readvantage`, `compare`, `audit_run`. They print nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from agentrl.concurrency.notebook import outside_loop
from agentrl.config.python_settings import nested, plain_settings
from agentrl.errors import ConfigError
from agentrl.registry import give
from agentrl.replay.base import Options, Result
from agentrl.replay.command import replay_modes
from agentrl.saved.run import Run

RunLike: TypeAlias = Run | str | Path
"""A loaded run, or its location: `PATH` or `PATH@STEP`."""
Rewards: TypeAlias = str | Callable[..., object] | Sequence[str | Callable[..., object]]
Settings: TypeAlias = Mapping[str, object] | None


def rescore(run: RunLike, reward: Rewards, *, split: str | None = None, settings: Settings = None) -> Result:
    """Score saved rollouts with another reward: a function, `file.py:function`, or a built-in's name.

    Args:
        reward: one reward or several rewards.
        split: `train` or `val`; by default `train` if it exists.
        settings: configuration keys that replace the saved values.

    Raises:
        AgentRLError: the run cannot be read, or a reward cannot be used.
    """
    return _replayed(run, ["rescore"], Options(_names(reward), _overrides(settings)), split)


def readvantage(run: RunLike, *, reward: Rewards = (), split: str | None = None, settings: Settings = None) -> Result:
    """Recompute the advantages with other `settings` or another `reward`; compare them with the saved advantages.

    For arguments and errors, see `rescore`.
    """
    names = _names(reward)
    modes = ["rescore", "readvantage"] if names else ["readvantage"]
    return _replayed(run, modes, Options(names, _overrides(settings)), split)


def compare(a: RunLike, b: RunLike, *, split: str | None = None, level: float = 0.95) -> Result:
    """Compare two runs or two steps task by task, with confidence intervals at confidence level `level`.

    Raises:
        AgentRLError: the runs have no tasks in common, or cannot be read.
    """
    return _replayed(a, ["compare"], Options(other=_where(b), level=level), split)


def audit_run(run: RunLike, *, split: str | None = None, allow_unchecked: bool = False) -> Result:
    """Recompute all saved values with independent code. The result's `failed` is true if the audit does not pass.

    Args:
        allow_unchecked: whether the audit can pass although an invariant could not be checked.

    Raises:
        AgentRLError: there are no rollouts.
    """
    return _replayed(run, ["audit"], Options(allow_unchecked=allow_unchecked), split)


def _replayed(run: RunLike, modes: Sequence[str], options: Options, split: str | None) -> Result:
    """Run the modes and return the result of the last mode."""
    found = outside_loop(replay_modes, _where(run), split, modes, options, silent=True)
    if found.error:
        raise found.error
    return found.results[-1]


def _where(run: RunLike) -> str:
    if not isinstance(run, Run | str | Path):
        raise ConfigError.keyless(f"expected a run: a folder's name or agentrl.load(...), not {run!r:.60}")
    return str(run.path if isinstance(run, Run) else run)


def _names(reward: Rewards) -> list[str]:
    rewards = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
    return [each if isinstance(each, str) else give(each) for each in rewards]


def _overrides(settings: Settings) -> dict[str, object]:
    return nested(plain_settings(settings))
