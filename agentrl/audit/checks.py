"""Compare values with expected values and report differences."""

from __future__ import annotations

import numpy as np

from agentrl.audit.base import Ledger, Problem, shown
from agentrl.audit.reading.table import Integers, Step, Truths


class Checker:
    """Reports the problems of one step to the ledger."""

    def __init__(self, step: Step, ledger: Ledger) -> None:
        self.step = step
        self.ledger = ledger

    def problem(self, invariant: str, row: int, column: str, expected: object, found: object) -> None:
        """Report a problem at one place."""
        self.ledger.report(Problem(invariant, *self.step.key(row), column, shown(expected), shown(found)))

    def require(self, invariant: str, path: str, good: Truths, expected: object) -> None:
        """Count all values of the leaf (column) `path` as checked, and report each value for which `good` is false.

        Args:
            expected: a description of the expected values, or an array of them.
        """
        self.ledger.count(invariant, len(good))
        for index in np.flatnonzero(~good).tolist():
            row, column = self.step.place(path, index)
            right = expected[index].item() if isinstance(expected, np.ndarray) else expected
            found = self.step[path][index]
            self.problem(invariant, row, column, right, found.item() if isinstance(found, np.generic) else found)

    def require_lengths(self, invariant: str, path: str, expected: Integers) -> Truths:
        """Check the length of every list in the column `path` against `expected`; return which lists match.

        Args:
            expected: the expected length of each list; -1 for a list that must be null.
        """
        items = self.step.items[path]
        lengths = np.where(items.null, -1, items.lengths)
        good: Truths = lengths == expected
        self.ledger.count(invariant, len(good))
        for index in np.flatnonzero(~good).tolist():
            row, column = self.step.list_place(path, index)
            self.problem(invariant, row, column, _length(expected[index]), _length(lengths[index]))
        return good


def _length(number: int) -> str:
    return "null" if number < 0 else f"{number} values"
