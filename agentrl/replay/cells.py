"""A cell of a table as text that hides nothing, does nothing to a terminal, and is not endless."""

from __future__ import annotations

from agentrl.estimates.base import Estimate
from agentrl.replay.base import Cell
from agentrl.trainer.figures import number
from agentrl.trainer.sample_view import visible

MAX_CHARACTERS, MAX_NAME = 2000, 48


def cell_text(cell: Cell, max_characters: int = MAX_CHARACTERS) -> str:
    """A float with four digits, an estimate with its interval, nothing as a dash; long text loses its end, and says so.

    "x" * 5000  ->  "xxx… (3,000 more characters)"
    """
    if cell is None:
        return "–"
    if isinstance(cell, Estimate):
        return _estimate(cell)
    if isinstance(cell, float):
        return number(cell, 4)
    if isinstance(cell, int):
        return f"{cell:,}"
    left_out = len(cell) - max_characters
    return visible(cell) if left_out <= 0 else f"{visible(cell[:max_characters])}… ({left_out:,} more characters)"


def is_numeric(cell: Cell) -> bool:
    """Whether it stands to the right of its column."""
    return not isinstance(cell, str)


def is_name(cell: Cell) -> bool:
    """Whether it is a word that should not be broken."""
    return isinstance(cell, str) and len(cell) <= MAX_NAME and " " not in cell


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return number(estimate.value, 4)
    return f"{number(estimate.value, 4)} [{number(estimate.low, 4)}, {number(estimate.high, 4)}]"
