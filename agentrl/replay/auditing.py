"""`audit`: every number of the rollouts derived again, by code that shares nothing with what wrote them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path

from pydantic import JsonValue

from agentrl.audit.auditor import Auditor
from agentrl.audit.base import INVARIANTS, Finding, Ledger, Problem, shown
from agentrl.replay.base import Cell, Replay, Result, Table, key_of
from agentrl.replay.saved import SavedRun
from agentrl.trainer.checkpoint import CHECKPOINTS

_NOTHING = "there is nothing of the kind"
_WITHOUT = "rescored"
"""Is asked for by an earlier mode of the command, and no part of the audit without it."""


def audit(replay: Replay) -> Result:
    """Check every invariant of every rollout; failed where one is broken, or for want of something not checked at all.

    The latter `allow_unchecked` lets pass. Scores that an earlier `rescore` gave are held against the saved ones.
    """
    run, options = replay.run, replay.options
    unknown = {} if run.config else options.overrides  # what was kept is what was done, whatever other modes are to try
    auditor = Auditor(run.split, options.tokenizer, run.folder, unknown)
    files = dict.fromkeys(run.store.file(step) for step in run.steps)
    ledger = auditor.audit(files, run.steps, whole=_is_whole(run))
    _compare_scores(replay, ledger)
    findings = {name: found for name, found in ledger.findings.items() if name != _WITHOUT or found.looked_at}
    wanting = [] if options.allow_unchecked else [name for name, found in findings.items() if found.wanting]
    failed = any(found.num_problems for found in findings.values()) or not _rows(ledger) or bool(wanting)
    told = _told(findings, _rows(ledger))
    if wanting:
        told += f"; failed for want of what {', '.join(wanting)} need: --allow-unchecked lets that pass"
    return Result("audit", told, list(_tables(findings)), _values(findings), failed)


def _is_whole(run: SavedRun) -> bool:
    """Whether a folder with all its steps is asked for, not a step, a checkpoint or a file."""
    asked = Path(run.name)
    return asked.is_dir() and run.steps == run.store.steps and asked.resolve().parent.name != CHECKPOINTS


def _compare_scores(replay: Replay, ledger: Ledger) -> None:
    for name, scores in replay.scores.items():
        for stored in replay.run.rollouts(columns=["rewards"]):
            key, saved = key_of(stored), stored.rollout.rewards.get("score")
            now = scores.get(key)
            if now is None or saved is None:
                ledger.skip(_WITHOUT, f"no score saved, or none by '{name}'")
                continue
            ledger.look(_WITHOUT, 1)
            if not isclose(now, saved, rel_tol=1e-9, abs_tol=1e-9):
                ledger.report(Problem(_WITHOUT, *key, "rewards.value", f"{now:g} by '{name}'", f"{saved:g}"))


def _rows(ledger: Ledger) -> int:
    """How many rollouts were looked at."""
    return ledger.findings["groups"].looked_at


def _told(findings: dict[str, Finding], num_rows: int) -> str:
    by_status: dict[str, list[str]] = {"passed": [], "failed": [], "not checkable": []}
    for name, found in findings.items():
        by_status[found.status].append(name)
    partly = sum(found.status != "not checkable" and bool(found.unchecked) for found in findings.values())
    said = [f"{num_rows:,} rollouts: {len(by_status['passed'])} of {len(findings)} invariants passed"]
    for status in ("failed", "not checkable"):
        if names := by_status[status]:
            said.append(f"{len(names)} {status} ({', '.join(names)})")
    return "; ".join([*said, *([f"{partly} checkable only in part"] if partly else [])])


def _tables(findings: dict[str, Finding]) -> Iterator[Table]:
    rows = [_row(name, found) for name, found in findings.items()]
    yield Table("invariants", ("invariant", "status", "looked at", "problems", "not checkable"), rows)
    problems = [problem for found in findings.values() for problem in found.problems]
    if problems:
        total = sum(found.num_problems for found in findings.values())
        columns = ("invariant", "step", "uid", "rollout", "column", "expected", "found")
        note = f"The first places of {total:,} in all, one a rollout and column." if total > len(problems) else ""
        yield Table("problems", columns, [_problem(problem) for problem in problems], note)


def _row(name: str, found: Finding) -> Sequence[Cell]:
    why = "; ".join(f"{count:,} × {shown(why)}" for why, count in found.unchecked.items())
    nothing = _NOTHING if found.status == "not checkable" else ""
    return name, found.status, found.looked_at, found.num_problems, why or nothing


def _problem(problem: Problem) -> Sequence[Cell]:
    # steps and rollouts are names here, not amounts
    place = (str(problem.step), problem.uid, str(problem.rollout), problem.column)
    return problem.invariant, *place, problem.expected, problem.found


def _values(findings: dict[str, Finding]) -> dict[str, JsonValue]:
    return {
        name: {
            "says": INVARIANTS[name],
            "status": found.status,
            "looked_at": found.looked_at,
            "num_problems": found.num_problems,
            "problems": [asdict(problem) for problem in found.problems],
            "not_checkable": dict(found.unchecked),
        }
        for name, found in findings.items()
    }
