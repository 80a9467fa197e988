"""Output of `agentrl data check`: as text on the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from agentrl.cli.data.probe import Checked
from agentrl.data.inspection import Finding
from agentrl.security.visible_text import visible

NUM_BINS = 12
BAR_WIDTH = 40
SHOWN = 12
"""Maximum number of listed columns, data sources and tools."""
_PERCENTILES = (50, 90, 95, 99)


def document(checked: Mapping[str, Checked], leaks: Sequence[Finding]) -> dict[str, object]:
    """Return all findings as a JSON document."""
    return {
        "problems": sum(each.count for each in _problems(checked, leaks)),
        "leaks": [asdict(each) for each in leaks],
        **{split: _document(each) for split, each in checked.items()},
    }


def print_checked(checked: Mapping[str, Checked], leaks: Sequence[Finding], console: Console | None = None) -> None:
    """Print tables, the length distribution, then problems and notes with example rows."""
    console = console or Console()
    for split, each in checked.items():
        if each is not next(iter(checked.values())):
            console.print()
        console.print(Text.assemble((split, "bold"), f": {each.found.num_rows:,} {each.found.kind}"))
        console.print(_columns(each))
        for line in _facts(each):
            console.print(line, soft_wrap=True, highlight=False)
        if each.lengths:
            console.print(_length_summary(each.lengths, each.limit), soft_wrap=True)
            console.print(_histogram(each.lengths, each.limit))
    console.print()
    for split, each in checked.items():
        _print_findings(console, each.problems, split, "bold red")
        _print_findings(console, each.notes, split, "yellow")
    _print_findings(console, leaks, "val", "bold red")
    num_problems = sum(each.count for each in _problems(checked, leaks))
    if not num_problems:
        console.print(Text("no problems found", "bold green"))


def _problems(checked: Mapping[str, Checked], leaks: Sequence[Finding]) -> Iterator[Finding]:
    yield from leaks
    for each in checked.values():
        yield from each.problems


def _document(checked: Checked) -> dict[str, object]:
    found = checked.found
    return {
        "kind": found.kind,
        "rows": found.num_rows,
        "columns": found.columns,
        "data_sources": found.sources,
        "tools": found.tools,
        "without_ground_truth": found.num_without_truth,
        "probed_by_reward": checked.num_probed,
        "tokens": _percentiles(checked.lengths) | {"limit": checked.limit} if checked.lengths else None,
        "problems": [asdict(each) for each in checked.problems],
        "notes": [asdict(each) for each in checked.notes],
    }


def _columns(checked: Checked) -> Table:
    table = Table("column", "types", Column("rows", justify="right"), box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns = checked.found.columns
    for name, types in list(columns.items())[:SHOWN]:
        count = sum(types.values())
        rows = "all" if count == checked.found.num_rows else f"{count:,}"
        table.add_row(Text(visible(name)), " or ".join(types), rows)
    if (left := len(columns) - SHOWN) > 0:
        table.caption = f"{left} more columns"
    return table


def _facts(checked: Checked) -> Iterator[Text]:
    found = checked.found
    if found.sources:
        yield _counted("data sources", found.sources)
    if found.tools:
        yield _counted("tools", found.tools)
    if found.num_without_truth:
        yield Text(f"rows without a ground truth: {found.num_without_truth:,}")
    if checked.num_probed:
        yield Text(f"reward called with an empty answer for the ground truth of {checked.num_probed:,} rows")


def _counted(name: str, counts: Mapping[str, int]) -> Text:
    shown = sorted(counts.items(), key=lambda item: -item[1])[:SHOWN]
    more = f", {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return Text.assemble((f"{name}: ", "bold"), ", ".join(f"{visible(key)} ({count:,})" for key, count in shown) + more)


def _percentiles(lengths: Sequence[int]) -> dict[str, int]:
    ranked = sorted(lengths)
    at = {f"p{share}": ranked[min(len(ranked) - 1, share * len(ranked) // 100)] for share in _PERCENTILES}
    return {"min": ranked[0], **at, "max": ranked[-1]}


def _length_summary(lengths: Sequence[int], limit: int) -> Text:
    percentiles = ", ".join(f"{name} {value:,}" for name, value in _percentiles(lengths).items())
    num_long = sum(length > limit for length in lengths)
    return Text.assemble(("tokens: ", "bold"), f"{percentiles}; {num_long:,} longer than {limit:,}")


def _histogram(lengths: Sequence[int], limit: int) -> Table:
    """Histogram with bins of equal width; bins above the limit are red."""
    table = Table("tokens", Column("rows", justify="right"), "", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    width = max(1, -(-(max(lengths) + 1 - min(lengths)) // NUM_BINS))
    start = min(lengths)
    counts = [0] * ((max(lengths) - start) // width + 1)
    for length in lengths:
        counts[(length - start) // width] += 1
    for place, count in enumerate(counts):
        first = start + place * width
        bar = "█" * max(bool(count), round(BAR_WIDTH * count / max(counts)))
        style = "red" if first > limit else "cyan"
        last = f" to {first + width - 1:,}" if width > 1 else ""
        table.add_row(f"{first:,}{last}", f"{count:,}", Text(bar, style))
    return table


def _print_findings(console: Console, findings: Sequence[Finding], split: str, style: str) -> None:
    for finding in findings:
        console.print(Text(f"{split}: {finding.kind}: {finding.count:,}", style), soft_wrap=True)
        for where, why in finding.examples:
            console.print(Text(f"    {visible(where)}: {visible(why)}"), soft_wrap=True)
        if left := finding.count - len(finding.examples):
            console.print(Text(f"    and {left:,} more", "dim"))
