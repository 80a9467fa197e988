"""`agentrl import-rollouts` and `agentrl export-rollouts`: saved rollouts from and for other frameworks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from agentrl.errors import ConfigError, DataError
from agentrl.replay.saved import SavedRun, open_saved
from agentrl.store.foreign.formats import guess_format, reader_of
from agentrl.store.foreign.importing import Imported, import_rollouts
from agentrl.store.rows.dialogues import dialogue_rows
from agentrl.store.rows.pairs import pair_rows
from agentrl.store.rows.tasks import task_rows
from agentrl.store.rows.wanted import COLUMNS, Rows, Wanted, kept_tools
from agentrl.store.rows.writing import write_lines, write_table
from agentrl.store.schema import TRAJECTORIES
from agentrl.store.whole import whole_folder
from agentrl.trainer.provenance import TOOLS


class _Format(NamedTuple):
    rows: Rows
    write: Callable[[Path, Iterable[Mapping[str, object]]], int]
    suffix: str


def import_(options: argparse.Namespace) -> None:
    """Write the rollouts that `options.source` logs into the new run-shaped folder `options.folder`.

    Raises:
        AgentRLError: the source or one of its rows cannot be used, or the folder is not empty.
    """
    if not options.source.exists():
        raise DataError(f"there is no '{options.source}'")
    form = options.format or guess_format(options.source)
    if options.reward_column and form != "trl":
        raise ConfigError(f"--reward-column goes with --format trl, not {form}")
    read = reader_of(form, options.reward_column)
    with whole_folder(options.folder) as folder:
        to = folder / TRAJECTORIES / options.split
        done = import_rollouts(options.source, to, form, read, split=options.split, skip_bad_rows=options.skip_bad_rows)
    _tell_imported(done, form, options.folder)


def _tell_imported(done: Imported, form: str, folder: Path) -> None:
    for line in done.bad_rows:
        print(f"agentrl: left out: {line}", file=sys.stderr)
    if done.bad_rows:
        print(f"agentrl: {len(done.bad_rows)} bad rows left out", file=sys.stderr)
    print(
        f"imported {done.num_rollouts} rollouts in {done.num_groups} groups and {len(done.steps)} steps ({form}) into"
        f" {folder}; they have messages and rewards, and no tokens"
    )


def export(options: argparse.Namespace) -> None:
    """Write the rollouts of `options.run` to `options.file`, as rows of another format.

    Raises:
        AgentRLError: there are no such rollouts, or the file cannot be written.
    """
    chosen = _format(options)
    if options.file.suffix != chosen.suffix:
        raise ConfigError(f"--format {options.format} writes a {chosen.suffix} file, not '{options.file}'")
    run = open_saved(options.run, options.split)
    wanted = Wanted(options.min_reward, kept_tools(run.provenance.get(TOOLS)))
    _make(options.file.absolute().parent)
    num_rows = chosen.write(options.file, chosen.rows(run.groups(COLUMNS), wanted))
    _tell_exported(num_rows, wanted, run, options.file)


def _format(options: argparse.Namespace) -> _Format:
    if options.format != "pairs" and (options.pairs or options.margin is not None):
        raise ConfigError("--pairs and --margin go with --format pairs")
    return {
        "messages": _Format(dialogue_rows, write_lines, ".jsonl"),
        "pairs": _Format(pair_rows(options.pairs or "best", options.margin or 0.0), write_lines, ".jsonl"),
        "verl": _Format(cast(Rows, task_rows), write_table, ".parquet"),
    }[options.format]


def _tell_exported(num_rows: int, wanted: Wanted, run: SavedRun, file: Path) -> None:
    for reason, count in wanted.left_out.items():
        example = f", as in: {wanted.examples[reason]}" if reason in wanted.examples else ""
        print(f"agentrl: left out: {count} {reason}{example}", file=sys.stderr)
    if not num_rows:
        print("agentrl: nothing is left, so the file has no rows", file=sys.stderr)
    print(f"exported {num_rows} rows of {run.told} to {file}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder '{folder}': {error.strerror}") from error
