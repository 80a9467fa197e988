"""Open files of rollouts, check them against the schema, and yield one step at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.audit.base import Ledger, Problem, shown
from agentrl.audit.reading.run_info import RunInfo
from agentrl.audit.reading.schema import LEAVES_OF
from agentrl.audit.reading.table import Step

_NAME = re.compile(r"step-(\d+)\.parquet")


def named_step(path: Path) -> int:
    """The step in a file's name; -1 if there is none."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else -1


def open_steps(path: Path, ledger: Ledger, steps: Collection[int] | None) -> Iterator[Step]:
    """Yield the steps of a file. If the file cannot be read or has a wrong schema, report a problem and yield nothing.

    Args:
        steps: the steps to yield if the file's name contains no step; None: all.
    """
    number = named_step(path)
    ledger.count("file", 1)
    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        wrong = " ".join(str(error).split())
    else:
        full = Step(path, table, number)
        if not (wrong := _schema_problem(full)):
            _check_provenance(full, ledger)
            if number >= 0:
                yield full
            else:
                yield from _by_step(path, table, steps)
            return
    ledger.report(
        Problem(
            "file", number, "", -1, path.name, f"a file of trajectories, schema {' or '.join(LEAVES_OF)}", shown(wrong)
        )
    )


def _check_provenance(step: Step, ledger: Ledger) -> None:
    """Check that the provenance (metadata about how the rollouts were made) is complete; imported files have none."""
    if "provenance.imported_from" in step.metadata:
        return
    for name in ("config", "tools", "tokenizer_sha256", "chat_template_sha256"):
        if f"provenance.{name}" not in step.metadata:
            column = f"metadata provenance.{name}"
            ledger.report(Problem("file", step.number, "", -1, column, "provenance of the rollouts", "missing"))


def _by_step(path: Path, table: pa.Table, steps: Collection[int] | None) -> Iterator[Step]:
    for number in table["step"].unique().to_pylist():
        if steps is None or number in steps:
            rows = pc.equal(table["step"], number)
            yield Step(path, table.filter(rows), number)


def _schema_problem(step: Step) -> str:
    version = step.metadata.get("schema_version", "unknown")
    if version not in LEAVES_OF:
        return f"schema version {version}"
    leaves = LEAVES_OF[version]
    kinds = {path: str(array.type) for path, array in step.arrays.items()}
    for path, kind in leaves.items():
        if kinds.get(path) != kind:
            return f"column '{path}' is {kinds.get(path, 'missing')}, not {kind}"
    return f"unknown column '{next(iter(more))}'" if (more := kinds.keys() - leaves.keys()) else ""


_NO_METRICS = "missing steps: there is no metrics.jsonl"


def check_gaps(ledger: Ledger, seen: Mapping[int, RunInfo | None], split: str, folder: Path | None) -> None:
    """Check that no file is missing.

    In the split `train`, there must be one file per training step. In the split `val`, there must be one file for each
    step of `metrics.jsonl` that has validation metrics.

    Args:
        seen: step -> metadata of its file, for the files that exist.
        folder: the run's folder, which may contain `metrics.jsonl`.
    """
    known = next((known for known in seen.values() if known), None)
    if known is None or known.replayed_from or known.imported:
        return  # a replay or an import may contain any steps
    path = folder / "metrics.jsonl" if folder else None
    if path is None or not path.is_file():
        ledger.skip("file", _NO_METRICS)
        logged = dict[int, bool]()
    else:
        logged = dict(_logged(path))
    expected = {step for step, validated in logged.items() if validated}
    if split == "train":
        expected = _trained([*seen, *(step for step in logged if step > 0)], known)
    for step in sorted(expected - seen.keys()):
        ledger.report(Problem("file", step, "", -1, f"step-{step:06d}.parquet", "rollouts of this step", "no file"))


def _trained(steps: Collection[int], known: RunInfo) -> set[int]:
    """Expected training steps: from 1, or from the smallest step if the run started from another run's checkpoint."""
    elsewhere = known.get("trainer.resume_mode") == "path" and known.get("trainer.resume_from_path")
    return set(range(min(steps) if elsewhere else 1, max(steps) + 1))


def _logged(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield (step, whether it has validation metrics) from `metrics.jsonl`, up to the first incomplete line."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            metrics = json.loads(line)
        except ValueError:
            return
        if isinstance(metrics, dict) and isinstance(metrics.get("step"), int):
            yield metrics["step"], any(name.startswith("val/") for name in metrics)
