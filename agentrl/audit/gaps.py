"""Which steps a run has: those without a file are missing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from agentrl.audit.base import Ledger, Problem
from agentrl.audit.known import Known

_NO_METRICS = "whether steps are missing: there is no metrics.jsonl"


def check_gaps(ledger: Ledger, seen: Mapping[int, Known | None], split: str, folder: Path | None) -> None:
    """Every step of training from the first to the last, and every validation that the run's metrics tell of.

    Args:
        seen: the steps that there are, and what is known of them.
        folder: of the run, where its `metrics.jsonl` may be.
    """
    known = next((known for known in seen.values() if known), None)
    if known is None or known.replayed_from or known.imported:
        return  # whoever made them chose the steps
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


def _trained(steps: Collection[int], known: Known) -> set[int]:
    """From 1 on, but where a run starts from another's checkpoint and leaves the steps before with that."""
    elsewhere = known.get("trainer.resume_mode") == "path" and known.get("trainer.resume_from_path")
    return set(range(min(steps) if elsewhere else 1, max(steps) + 1))


def _logged(path: Path) -> Iterator[tuple[int, bool]]:
    """Each step of `metrics.jsonl`, and whether it was validated; up to a line that a kill cut short."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            metrics = json.loads(line)
        except ValueError:
            return
        if isinstance(metrics, dict) and isinstance(metrics.get("step"), int):
            yield metrics["step"], any(name.startswith("val/") for name in metrics)
