"""`agentrl import-rollouts` and `agentrl export-rollouts`: exchange saved rollouts with other frameworks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from agentrl.errors import ConfigError
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.run_folder.provenance import TOOLS
from agentrl.security.visible_text import visible
from agentrl.store.exporters.dialogues import dialogue_rows
from agentrl.store.exporters.pairs import pair_rows
from agentrl.store.exporters.selection import COLUMNS, Rows, Selection, saved_tools
from agentrl.store.exporters.tasks import task_rows
from agentrl.store.exporters.traces import COLUMNS as TRACE_COLUMNS
from agentrl.store.exporters.traces import NOT_EXPORTED, trace_rows
from agentrl.store.exporters.writing import write_lines, write_table
from agentrl.store.importers.formats import guess_format, reader_of
from agentrl.store.importers.importing import Imported, import_rollouts
from agentrl.store.importers.traces import NOT_IMPORTED, TRACES
from agentrl.store.schema import TRAJECTORIES
from agentrl.utils.atomic_files import atomic_folder


class _Format(NamedTuple):
    rows: Rows
    write: Callable[[Path, Iterable[Mapping[str, object]]], int]
    columns: Sequence[str] = COLUMNS
    lost: str = ""


def import_(options: argparse.Namespace) -> None:
    """Import the rollouts of `options.source` into the new folder `options.folder`, which gets the layout of a run.

    Raises:
        AgentRLError: the source or one of its rows cannot be used, or the folder is not empty.
    """
    form = options.format or guess_format(options.source)
    if options.reward_column and form != "trl":
        raise ConfigError.keyless(f"--reward-column needs --format trl, not {form}")
    read = reader_of(form, options.reward_column)
    with atomic_folder(options.folder) as folder:
        to = folder / TRAJECTORIES / options.split
        done = import_rollouts(options.source, to, form, read, split=options.split, skip_bad_rows=options.skip_bad_rows)
    _report_import(done, form, options.folder)


def _report_import(done: Imported, form: str, folder: Path) -> None:
    for line in done.bad_rows:
        print(visible(f"agentrl: skipped: {line}"), file=sys.stderr)
    if done.bad_rows:
        print(f"agentrl: skipped {len(done.bad_rows)} bad rows", file=sys.stderr)
    kept = f"tokens, but not: {NOT_IMPORTED}" if form == TRACES else "messages and rewards, but no tokens"
    print(
        f"imported {done.num_rollouts} rollouts in {done.num_groups} groups and {len(done.steps)} steps ({form}) into"
        f" {folder}; they have {kept}"
    )


def export(options: argparse.Namespace) -> None:
    """Export the rollouts of `options.run` to `options.file`, as rows of another format.

    Raises:
        AgentRLError: no rollouts are found, or the file cannot be written.
    """
    chosen = _format(options)
    run = open_saved(options.run, options.split)
    selection = Selection(options.min_reward, saved_tools(run.provenance.get(TOOLS)))
    _make(options.file.absolute().parent)
    num_rows = chosen.write(options.file, chosen.rows(run.groups(chosen.columns), selection))
    _report_export(num_rows, selection, run, options.file)
    if chosen.lost:
        print(f"not exported: {chosen.lost}")


def _format(options: argparse.Namespace) -> _Format:
    return {
        "messages": _Format(dialogue_rows, write_lines),
        "pairs": _Format(pair_rows(options.pairs or "best", options.margin or 0.0), write_lines),
        "verl": _Format(cast(Rows, task_rows), write_table),
        TRACES: _Format(trace_rows, write_lines, (*COLUMNS, *TRACE_COLUMNS), NOT_EXPORTED),
    }[options.format]


def _report_export(num_rows: int, selection: Selection, run: SavedRun, file: Path) -> None:
    for reason, count in selection.skipped.items():
        example = f", for example: {selection.examples[reason]}" if reason in selection.examples else ""
        print(visible(f"agentrl: skipped: {count} {reason}{example}"), file=sys.stderr)
    if not num_rows:
        print("agentrl: nothing to export, the file has no rows", file=sys.stderr)
    print(visible(f"exported {num_rows} rows to {file} from {run.name}: {run.description}"))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError.keyless(f"cannot create the folder '{folder}': {error.strerror}") from error
