"""Files of rollouts: opened, held against the schema, one step at a time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agentrl.audit.base import Ledger, Problem, shown
from agentrl.audit.schema import LEAVES_OF
from agentrl.audit.table import Step

_NAME = re.compile(r"step-(\d+)\.parquet")


def named_step(path: Path) -> int:
    """The step that a file is named by; -1 where it is not."""
    name = _NAME.fullmatch(path.name)
    return int(name[1]) if name else -1


def open_steps(path: Path, ledger: Ledger, steps: Collection[int] | None) -> Iterator[Step]:
    """The rows of a file; none where it cannot be read, which the ledger then says.

    Args:
        steps: of a file that is not named by its step, those that are asked for; None asks for all.
    """
    number = named_step(path)
    ledger.look("file", 1)
    try:
        table = pq.read_table(path, page_checksum_verification=True, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        wrong = " ".join(str(error).split())
    else:
        whole = Step(path, table, number)
        if not (wrong := _unlike_schema(whole)):
            _check_provenance(whole, ledger)
            if number >= 0:
                yield whole
            else:
                yield from _by_step(path, table, steps)
            return
    ledger.report(
        Problem(
            "file", number, "", -1, path.name, f"a file of trajectories, schema {' or '.join(LEAVES_OF)}", shown(wrong)
        )
    )


def _check_provenance(step: Step, ledger: Ledger) -> None:
    """What every run says of how its rollouts were made; imported ones cannot."""
    if "provenance.imported_from" in step.metadata:
        return
    for name in ("config", "tools", "tokenizer_sha256", "chat_template_sha256"):
        if f"provenance.{name}" not in step.metadata:
            column = f"metadata provenance.{name}"
            ledger.report(Problem("file", step.number, "", -1, column, "how the rollouts were made", "nothing"))


def _by_step(path: Path, table: pa.Table, steps: Collection[int] | None) -> Iterator[Step]:
    for number in table["step"].unique().to_pylist():
        if steps is None or number in steps:
            rows = pc.equal(table["step"], number)
            yield Step(path, table.filter(rows), number)


def _unlike_schema(step: Step) -> str:
    version = step.metadata.get("schema_version", "unknown")
    if version not in LEAVES_OF:
        return f"schema version {version}"
    leaves = LEAVES_OF[version]
    kinds = {path: str(array.type) for path, array in step.arrays.items()}
    for path, kind in leaves.items():
        if kinds.get(path) != kind:
            return f"column '{path}' is {kinds.get(path, 'missing')}, not {kind}"
    return f"unknown column '{next(iter(more))}'" if (more := kinds.keys() - leaves.keys()) else ""
