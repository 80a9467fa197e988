"""The saved environment of a run, `environment.json`. Importing this module does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

ENVIRONMENT_FILE = "environment.json"


def read_environment(path: Path) -> dict[str, JsonValue]:
    """Read a saved environment; empty if the file is missing or unreadable."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def reproducibility_text(kept: Mapping[str, JsonValue]) -> str | None:
    """Return a text that says whether the run with this environment is reproducible; None if unknown."""
    saved = kept.get("reproducible")
    if not isinstance(saved, dict) or "promised" not in saved:
        return None
    reasons = saved.get("why_not")
    why = "; ".join(map(str, reasons if isinstance(reasons, list) else []))
    return "yes" if saved["promised"] else f"no: {why}"
