"""Early checks of paths and flags on the command line, before slow imports. All mistakes are reported together."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from agentrl.cli.early import check_reward
from agentrl.data.rows.open import check_dataset
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.models.folder import tokenizer_file
from agentrl.replay.run_paths import split_place

ROLLOUT_SUFFIXES = {"messages": ".jsonl", "pairs": ".jsonl", "verl": ".parquet", "openenv": ".jsonl"}
"""Format of `export-rollouts` -> suffix of the exported file."""


def check_view(options: argparse.Namespace) -> None:
    """Refuse missing runs and a missing tokenizer."""
    _all(*_runs(options.run, options.other), *([partial(tokenizer_file, options.tokenizer)] * bool(options.tokenizer)))


def check_push(options: argparse.Namespace) -> None:
    """Refuse a missing run."""
    _all(*_runs(str(options.run)))


def check_import(options: argparse.Namespace) -> None:
    """Refuse a missing source, and a flag that belongs to another format."""

    def flags() -> None:
        if options.reward_column and options.format not in (None, "trl"):
            raise ConfigError.keyless(f"--reward-column needs --format trl, not {options.format}")

    def source() -> None:
        if not os.path.exists(options.source):  # noqa: PTH110  # pathlib raises on names that are too long
            raise DataError(f"there is no '{options.source}'")

    _all(source, flags)


def check_export_rollouts(options: argparse.Namespace) -> None:
    """Refuse a missing run, and flags or a file suffix that belong to another format."""

    def flags() -> None:
        if options.format != "pairs" and (options.pairs or options.margin is not None):
            raise ConfigError.keyless("--pairs and --margin need --format pairs")

    def file() -> None:
        suffix = ROLLOUT_SUFFIXES[options.format]
        if options.file.suffix != suffix:
            raise ConfigError.keyless(f"--format {options.format} writes a {suffix} file, not '{options.file}'")

    _all(*_runs(options.run), file, flags)


def check_replay(run: str, other: str | None, rewards: Sequence[str]) -> None:
    """Refuse missing runs, and rewards that are neither files nor known names.

    Raises:
        AgentRLError: one line per problem.
    """
    _all(*_runs(run, other), *_rewards(rewards))


def check_saved(options: argparse.Namespace) -> None:
    """Refuse missing inputs of `agentrl eval --from` and `--responses`.

    Raises:
        AgentRLError: one line per problem.
    """
    files = [partial(check_dataset, str(options.responses))] if options.responses else []
    _all(*_runs(options.saved), *files, *_rewards([options.reward] if options.reward else []))


def _runs(*places: str | None) -> Iterable[Callable[[], object]]:
    return [partial(split_place, where) for where in places if where is not None]


def _rewards(names: Sequence[str]) -> Iterable[Callable[[], object]]:
    return [partial(check_reward, name) for name in names]


def _all(*checks: Callable[[], object]) -> None:
    mistakes: list[str] = []
    for check in checks:
        try:
            check()
        except AgentRLError as error:
            mistakes.append(str(error))
    if mistakes:
        raise DataError("\n".join(mistakes))
