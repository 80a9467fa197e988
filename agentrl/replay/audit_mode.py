"""`audit`: recompute every saved value with code that is independent of the training code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isclose
from pathlib import Path

from pydantic import JsonValue

from agentrl.audit.auditor import Auditor
from agentrl.audit.base import INVARIANTS, MAX_PROBLEMS, Finding, Ledger, Problem, shown
from agentrl.replay.base import Cell, Replay, Result, Table, key_of
from agentrl.replay.saved_run import SavedRun
from agentrl.run_folder.checkpoints import CHECKPOINTS

_NOTHING = "nothing to check"
_RESCORED = "rescored"
"""Invariant that the audit checks only if `rescore` ran earlier in the same command."""


def audit(replay: Replay) -> Result:
    """Check every invariant (`agentrl.audit.base.INVARIANTS`) of every rollout.

    The audit fails if there is no rollout, if an invariant is broken, or if an invariant could not be checked because
    data or a tokenizer is missing. With `allow_unchecked`, an unchecked invariant does not fail the audit. If `rescore`
    ran earlier, its scores are compared with the saved scores.
    """
    run, options = replay.run, replay.options
    # overrides are used only if the run saved no configuration
    unknown = {} if run.config else options.overrides
    auditor = Auditor(run.split, options.tokenizer, run.folder, unknown)
    files = dict.fromkeys(run.store.file(step) for step in run.steps)
    ledger = auditor.audit(files, run.steps, complete=_is_complete(run))
    _compare_scores(replay, ledger)
    findings = {name: found for name, found in ledger.findings.items() if name != _RESCORED or found.num_checked}
    unchecked = [] if options.allow_unchecked else [name for name, found in findings.items() if found.uncheckable]
    failed = any(found.num_problems for found in findings.values()) or not _rows(ledger) or bool(unchecked)
    summary = _summary(findings, _rows(ledger))
    if unchecked:
        summary += f"; failed because {', '.join(unchecked)} could not be checked; --allow-unchecked allows this"
    return Result("audit", summary, list(_tables(findings)), _values(findings), failed)


def _is_complete(run: SavedRun) -> bool:
    """Whether the command selects all steps of a folder; false for one step, a checkpoint or a file."""
    path = Path(run.name)
    return path.is_dir() and run.steps == run.store.steps and path.resolve().parent.name != CHECKPOINTS


def _compare_scores(replay: Replay, ledger: Ledger) -> None:
    for name, scores in replay.scores.items():
        for stored in replay.run.rollouts(columns=["rewards"]):
            key, saved = key_of(stored), stored.rollout.rewards.get("score")
            now = scores.get(key)
            if now is None or saved is None:
                ledger.skip(_RESCORED, f"no saved score, or no score from '{name}'")
                continue
            ledger.count(_RESCORED, 1)
            if not isclose(now, saved, rel_tol=1e-9, abs_tol=1e-9):
                ledger.report(Problem(_RESCORED, *key, "rewards.value", f"{now:g} ('{name}')", f"{saved:g}"))


def _rows(ledger: Ledger) -> int:
    """Number of checked rollouts."""
    return ledger.findings["groups"].num_checked


def _summary(findings: dict[str, Finding], num_rows: int) -> str:
    by_status: dict[str, list[str]] = {"passed": [], "failed": [], "not checkable": []}
    for name, found in findings.items():
        by_status[found.status].append(name)
    partly = sum(found.status != "not checkable" and bool(found.unchecked) for found in findings.values())
    parts = [f"{num_rows:,} rollouts: {len(by_status['passed'])} of {len(findings)} invariants passed"]
    for status in ("failed", "not checkable"):
        if names := by_status[status]:
            parts.append(f"{len(names)} {status} ({', '.join(names)})")
    return "; ".join([*parts, *([f"{partly} checked only in part"] if partly else [])])


def _tables(findings: dict[str, Finding]) -> Iterator[Table]:
    rows = [_row(name, found) for name, found in findings.items()]
    yield Table("invariants", ("invariant", "status", "checked", "problems", "not checkable"), rows)
    problems = [problem for found in findings.values() for problem in found.problems]
    if problems:
        total = sum(found.num_problems for found in findings.values())
        columns = ("invariant", "step", "uid", "rollout", "column", "expected", "found")
        note = (
            f"The first of {total:,} problems: at most one per rollout and column, and {MAX_PROBLEMS} per invariant."
            if total > len(problems)
            else ""
        )
        yield Table("problems", columns, [_problem(problem) for problem in problems], note)


def _row(name: str, found: Finding) -> Sequence[Cell]:
    why = "; ".join(f"{count:,} × {shown(why)}" for why, count in found.unchecked.items())
    nothing = _NOTHING if found.status == "not checkable" else ""
    return name, found.status, found.num_checked, found.num_problems, why or nothing


def _problem(problem: Problem) -> Sequence[Cell]:
    # strings, so that steps and rollout numbers get no thousands separators
    place = (str(problem.step), problem.uid, str(problem.rollout), problem.column)
    return problem.invariant, *place, problem.expected, problem.found


def _values(findings: dict[str, Finding]) -> dict[str, JsonValue]:
    return {
        name: {
            "says": INVARIANTS[name],
            "status": found.status,
            "looked_at": found.num_checked,
            "num_problems": found.num_problems,
            "problems": [asdict(problem) for problem in found.problems],
            "not_checkable": dict(found.unchecked),
        }
        for name, found in findings.items()
    }
