"""Format table cells as text: control characters are made visible, and long text is cut."""

from __future__ import annotations

from agentrl.replay.base import Cell
from agentrl.reporting.formatting import number
from agentrl.security.visible_text import visible
from agentrl.stats.base import Estimate

MAX_CHARACTERS, MAX_NAME = 2000, 48


def cell_text(cell: Cell, max_characters: int = MAX_CHARACTERS) -> str:
    """Format a cell: floats with four significant digits, estimates with interval, None as a dash. Long text is cut.

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
    num_cut = len(cell) - max_characters
    return visible(cell) if num_cut <= 0 else f"{visible(cell[:max_characters])}… ({num_cut:,} more characters)"


def is_numeric(cell: Cell) -> bool:
    """Whether the cell is not text; such cells are aligned to the right."""
    return not isinstance(cell, str)


def is_name(cell: Cell) -> bool:
    """Whether the cell is a short name that must not be broken."""
    return isinstance(cell, str) and len(cell) <= MAX_NAME and " " not in cell


def _estimate(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return number(estimate.value, 4)
    return f"{number(estimate.value, 4)} [{number(estimate.low, 4)}, {number(estimate.high, 4)}]"
