"""Rows that ask the same: within a dataset, and in training and validation."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.data.inspection import Finding, Inspection


def duplicates(found: Inspection) -> list[Finding]:
    """Rows that repeat an earlier one: to the letter, with another answer, or but for case and blanks."""
    exact, contrary, near = Finding("repeated rows"), Finding("repeated rows with another answer"), Finding(_NEAR)
    first_exact: dict[bytes, int] = {}
    first_near: dict[bytes, int] = {}
    for row, (key, like) in enumerate(zip(found.exact, found.normalised, strict=True)):
        before = first_exact.setdefault(key, row)
        alike = first_near.setdefault(like, row)
        if before < row:
            finding = exact if found.answers[before] == found.answers[row] else contrary
            finding.add(found.table.where(row), f"as {found.table.where(before)}")
        elif alike < row:
            near.add(found.table.where(row), f"as {found.table.where(alike)}")
    return [exact, contrary, near]


def leaks(train: Inspection, val: Inspection) -> list[Finding]:
    """Rows of validation that training holds too: to the letter, or but for case and blanks."""
    exact, near = Finding("rows that training holds"), Finding(f"rows that training holds, {_ASIDE}")
    first_exact, first_near = _first(train.exact), _first(train.normalised)
    for row, (key, like) in enumerate(zip(val.exact, val.normalised, strict=True)):
        if key in first_exact:
            exact.add(val.table.where(row), f"as {train.table.where(first_exact[key])}")
        elif like in first_near:
            near.add(val.table.where(row), f"as {train.table.where(first_near[like])}")
    return [exact, near]


def _first(keys: Sequence[bytes]) -> dict[bytes, int]:
    return {key: row for row, key in reversed(list(enumerate(keys)))}


_ASIDE = "case, blanks and closing marks aside"
_NEAR = f"repeated rows, {_ASIDE}"
