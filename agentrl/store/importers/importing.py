"""Import of other frameworks' logs into a store: groups of rollouts, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from agentrl.data.fields import FieldError
from agentrl.errors import DataError
from agentrl.store.importers.conversation import tool_calls_of
from agentrl.store.importers.logged import Logged, ReadRow
from agentrl.store.importers.reading import Row, log_files, log_rows
from agentrl.store.importers.traces import TRACES
from agentrl.store.schema import HAS_TOKENS, IMPORTED_FROM
from agentrl.store.text import write_json
from agentrl.store.trajectories import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory


@dataclass(slots=True)
class Imported:
    """Result of an import.

    Attributes:
        bad_rows: one text per skipped row: file, row and reason.
    """

    num_rollouts: int = 0
    num_groups: int = 0
    steps: list[int] = field(default_factory=list)
    bad_rows: list[str] = field(default_factory=list)


def import_rollouts(
    source: Path, folder: Path, form: str, read: ReadRow, *, split: str = "train", skip_bad_rows: bool = False
) -> Imported:
    """Write the rollouts of `source`, a file or a folder of files, as a store in `folder`.

    If a row has no step, its step is the number at the end of the file's name. If the name does not end in a number,
    the step is the position of the file in the sorted folder, from 1. Only traces have token ids. The stop reason of
    imported rollouts is `finished`, because logs do not contain stop reasons.

    Args:
        form: name of the log format, saved in the provenance.
        read: reader of the rows of this format.

    Raises:
        DataError: a file or a row cannot be used, two files hold the same step, or there are no rows.
    """
    done, indices = Imported(), dict[str, int]()
    for number, path in enumerate(log_files(source), start=1):
        steps = _by_step(_read_rows(log_rows(path), read, done.bad_rows if skip_bad_rows else None), path, number)
        store = TrajectoryStore(folder, split=split, provenance=_provenance(path, form))
        for step, rows in sorted(steps.items()):
            if step in done.steps:
                raise DataError(f"{path}: it has rows of step {step}, and so does an earlier file of '{source}'")
            groups = list(_groups(step, rows, indices))
            store.write(step, groups)
            done.steps.append(step)
            done.num_groups += len(groups)
            done.num_rollouts += sum(len(group.rollouts) for group in groups)
    if not done.steps:
        bad = f": all {len(done.bad_rows)} rows are bad; first: {done.bad_rows[0]}" if done.bad_rows else ""
        raise DataError(f"{source}: no rows to import{bad}")
    return done


def _read_rows(rows: Iterator[Row], read: ReadRow, bad: list[str] | None) -> Iterator[Logged]:
    """Yield the rows that can be read; add errors to `bad`, or raise if `bad` is None."""
    for where, row in rows:
        try:
            logged = read(row())
            write_json([logged.prompt, logged.answer, logged.ground_truth, logged.extra_info, logged.rest])
        except (FieldError, RecursionError) as error:  # RecursionError: nested too deeply to be written
            reason = str(error) if isinstance(error, FieldError) else "nested too deeply to be saved"
            if bad is None:
                raise DataError(f"{where}: {reason} (--skip-bad-rows skips such rows)") from None
            bad.append(f"{where}: {reason}")
            continue
        yield logged


def _by_step(rows: Iterator[Logged], path: Path, number: int) -> dict[int, list[Logged]]:
    digits = path.stem[len(path.stem.rstrip("0123456789")) :]
    default = int(digits[:18]) if digits.isascii() and digits else number
    steps: dict[int, list[Logged]] = {}
    for row in rows:
        steps.setdefault(default if row.step is None else row.step, []).append(row)
    return steps


def _groups(step: int, rows: Sequence[Logged], indices: dict[str, int]) -> Iterator[Group]:
    """Yield the groups, in the order of their first rows.

    Args:
        indices: task key -> index, in order of first appearance; a task keeps its index across steps.
    """
    groups: dict[str, list[Logged]] = {}
    for row in rows:
        groups.setdefault(row.uid or _key(row), []).append(row)
    for number, rows_of_group in enumerate(groups.values()):
        first = rows_of_group[0]
        index = indices.setdefault(_key(first), len(indices))
        attempts = _attempts(rows_of_group)
        logged: list[JsonValue] = [dict(attempt[-1].rest) for attempt in attempts]
        task = Task(
            messages=first.prompt,
            ground_truth=first.ground_truth,
            data_source=first.data_source or "unknown",
            index=index,
            uid=first.uid or f"{step:06d}-{number:05d}",
            extra_info={**first.extra_info, **({"logged": logged} if any(logged) else {})},
        )
        yield Group(task, [_rollout(attempt) for attempt in attempts])


def _key(row: Logged) -> str:
    """Return a key of the row's task. Rows with equal prompt, ground truth and data source have the same key."""
    return write_json([row.prompt, row.ground_truth, row.data_source])


def _attempts(rows_of_group: Sequence[Logged]) -> list[list[Logged]]:
    attempts: dict[str, list[Logged]] = {}
    for number, row in enumerate(rows_of_group):
        attempts.setdefault(f"{number}." if row.attempt is None else row.attempt, []).append(row)
    return list(attempts.values())


def _rollout(rows: Sequence[Logged]) -> Rollout:
    """Build a rollout from its rows. The rewards are those of the last row."""
    trajectories = [trajectory for row in rows for trajectory in _trajectories(row)]
    messages = enumerate(trajectory.messages for trajectory in trajectories)
    calls = [call for number, conversation in messages for call in tool_calls_of(conversation, number)]
    return Rollout(trajectories, Stop.FINISHED, dict(rows[-1].rewards), tool_calls=calls)


def _trajectories(row: Logged) -> Sequence[Trajectory]:
    return row.trajectories or [Trajectory([], [*row.prompt, *row.answer])]


def _provenance(path: Path, form: str) -> dict[str, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    tokens = {HAS_TOKENS: "true"} if form == TRACES else {}
    return {IMPORTED_FROM: form, **tokens, "source_file": path.name, "source_sha256": digest}
