"""Print results on the terminal: tables, or one block per row if a table is too wide."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text

from agentrl.replay.base import Cell, Result, Table
from agentrl.replay.output.cells import cell_text, is_name, is_numeric
from agentrl.replay.saved_run import SavedRun
from agentrl.security.visible_text import visible

MAX_CHARACTERS = 400
"""Maximum length of a cell on the terminal."""

MIN_SENTENCE_WIDTH = 24
"""Minimum width of a column of sentences, because narrower columns are unreadable."""


def print_heading(run: SavedRun, console: Console) -> None:
    """Print which rollouts are replayed."""
    console.print(Text(visible(f"{run.name}: {run.description}"), "dim"), soft_wrap=True)


def print_result(result: Result, console: Console) -> None:
    """Print the summary and the tables."""
    style = "bold red" if result.failed else "bold"
    console.print()
    console.print(Text.assemble((result.mode, style), f": {visible(result.summary)}"))
    for table in result.tables:
        console.print(Text(f"\n{visible(table.title)}", "bold"))
        widths = _widths(table, console.width)
        console.print(_grid(table, widths) if widths else _blocks(table))
        if table.note:
            console.print(Padding(Text(visible(table.note), "dim"), (0, 0, 0, 2)))


def _grid(table: Table, widths: Sequence[int]) -> Grid:
    columns = [
        Column(
            Text(visible(name)),
            justify="right" if all(map(is_numeric, cells)) else "left",
            width=width,  # by default, rich narrows the widest column first, even a column of numbers
            overflow="fold",
        )
        for name, cells, width in zip(table.columns, _columns(table), widths, strict=True)
    ]
    grid = Grid(*columns, box=SIMPLE_HEAD, show_edge=False, header_style="dim", padding=(0, 1, 0, 0), pad_edge=False)
    for row in table.rows:
        grid.add_row(*map(_text, row))
    return grid


def _blocks(table: Table) -> Grid:
    """Show each row as lines of column name and value, with a blank line between rows."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", overflow="fold", max_width=24)
    grid.add_column(overflow="fold")
    for number, row in enumerate(table.rows):
        if number:
            grid.add_row("", "")
        for name, cell in zip(table.columns, row, strict=True):
            grid.add_row(Text(visible(name)), _text(cell))
    return grid


def _widths(table: Table, available: int) -> list[int]:
    """Width of each column; empty if the columns do not fit.

    Spare width goes first to the columns that lack the fewest characters.
    """
    columns = list(zip(table.columns, _columns(table), strict=True))
    widths = [_min_width(name, cells) for name, cells in columns]
    spare = available - sum(widths) - 2 * len(widths)
    if spare < 0:
        return []
    lacks = [max(_full_width(name, cells) - width, 0) for width, (name, cells) in zip(widths, columns, strict=True)]
    for num_done, (lack, index) in enumerate(sorted(zip(lacks, range(len(lacks)), strict=True))):
        added = min(lack, spare // (len(lacks) - num_done))
        widths[index] += added
        spare -= added
    return widths


def _full_width(name: str, cells: Sequence[Cell]) -> int:
    """Column width at which no cell is broken into lines."""
    texts = [Text(visible(name)), *map(_text, cells)]
    return max(line.cell_len for text in texts for line in text.split(allow_blank=True))


def _min_width(name: str, cells: Sequence[Cell]) -> int:
    """Smallest width of a column. Numbers and names are never broken; sentences are broken between words."""
    texts = [(_text(cell).cell_len, is_numeric(cell) or is_name(cell)) for cell in cells]
    fixed = [length for length, unbroken in texts if unbroken]
    breakable = [min(length, MIN_SENTENCE_WIDTH) for length, unbroken in texts if not unbroken]
    return max(*(len(word) for word in ["", *name.split()]), *fixed, *breakable, 1)


def _columns(table: Table) -> list[list[Cell]]:
    return [[row[index] for row in table.rows] for index in range(len(table.columns))]


def _text(cell: Cell) -> Text:
    return Text(cell_text(cell, MAX_CHARACTERS))
