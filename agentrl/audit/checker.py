"""Holds values against what they should be, and writes down where they are not."""

from __future__ import annotations

import numpy as np

from agentrl.audit.base import Ledger, Problem, shown
from agentrl.audit.table import Integers, Step, Truths


class Checker:
    """Writes down what the checks of one step find."""

    def __init__(self, step: Step, ledger: Ledger) -> None:
        self.step = step
        self.ledger = ledger

    def problem(self, invariant: str, row: int, column: str, expected: object, found: object) -> None:
        """A place that is wrong."""
        self.ledger.report(Problem(invariant, *self.step.key(row), column, shown(expected), shown(found)))

    def hold(self, invariant: str, path: str, good: Truths, expected: object) -> None:
        """Every value of a leaf was looked at, and is as `expected` where it is `good`.

        Args:
            expected: in words, or an array of what each should be.
        """
        self.ledger.look(invariant, len(good))
        for index in np.flatnonzero(~good).tolist():
            row, column = self.step.place(path, index)
            wanted = expected[index].item() if isinstance(expected, np.ndarray) else expected
            found = self.step[path][index]
            self.problem(invariant, row, column, wanted, found.item() if isinstance(found, np.generic) else found)

    def hold_lengths(self, invariant: str, path: str, expected: Integers) -> Truths:
        """Every list has as many items as `expected`, -1 for null; which of them do."""
        items = self.step.items[path]
        lengths = np.where(items.null, -1, items.lengths)
        good: Truths = lengths == expected
        self.ledger.look(invariant, len(good))
        for index in np.flatnonzero(~good).tolist():
            row, column = self.step.list_place(path, index)
            self.problem(invariant, row, column, _length(expected[index]), _length(lengths[index]))
        return good


def _length(number: int) -> str:
    return "null" if number < 0 else f"{number} values"
