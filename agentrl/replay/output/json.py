"""Results of a command as JSON: all values, with stable keys; numbers are finite or null."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from agentrl.replay.base import Result, Table
from agentrl.replay.saved_run import SavedRun
from agentrl.stats.base import plain
from agentrl.version import __version__


def findings_json(run: SavedRun, results: Sequence[Result]) -> str:
    """Return `{"agentrl": version, "run": {...}, "results": [{"mode", "summary", "failed", "values", "tables"}]}`."""
    document = {
        "agentrl": __version__,
        "run": {"name": run.name, "split": run.split, "steps": list(run.steps)},
        "results": [_result(result) for result in results],
    }
    return json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False)  # ensure_ascii escapes lone surrogates


def _result(result: Result) -> JsonValue:
    return {
        "mode": result.mode,
        "summary": result.summary,
        "failed": result.failed,
        "values": plain(result.values),
        "tables": [_table(table) for table in result.tables],
    }


def _table(table: Table) -> JsonValue:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [[plain(cell) for cell in row] for row in table.rows],
        "note": table.note,
    }
