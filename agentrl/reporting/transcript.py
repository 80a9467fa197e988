"""Prints rollouts and results on the terminal after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from agentrl.reporting.formatting import compare, moment, number
from agentrl.reporting.samples import TextOf, segments
from agentrl.security.visible_text import visible
from agentrl.types.rollout import Rollout
from agentrl.types.trajectory import Author

STYLES = {
    Author.PROMPT: "bright_black",
    Author.MODEL: "green",
    Author.TOOL: "yellow",
    Author.USER: "magenta",
    Author.DEMONSTRATION: "cyan",
}


def print_samples(
    rollouts: Sequence[Rollout], text_of: TextOf, console: Console | None = None, max_characters: int = 1000
) -> None:
    """Print rollouts; labels and colours show the author of each segment.

    Args:
        text_of: converts tokens to text, including special tokens.
        max_characters: maximum number of characters of a segment; the middle of a longer segment is omitted.
    """
    console = console or Console()
    console.print(_legend(rollouts))
    for number_, rollout in enumerate(rollouts, start=1):
        console.print(Rule(Text(f"sample {number_}: {_headline(rollout)}"), align="left", style="dim"))
        table = Table.grid(padding=(0, 1))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for segment in segments(rollout, text_of):
            style = STYLES[Author(segment["author"])]
            table.add_row(
                Text(segment["author"], f"bold {style}"), Text(_shortened(segment["text"], max_characters), style)
            )
        console.print(Padding(table, (0, 0, 1, 0)))


def print_comparison(before: Mapping[str, float], after: Mapping[str, float], console: Console | None = None) -> None:
    """Print the results of two validations side by side, with their `step` if known."""
    moments = (moment(before, "before"), moment(after, "after"))
    table = Table(box=SIMPLE_HEAD, title=f"held-out, {' -> '.join(moments)}", title_justify="left")
    table.add_column("")
    for name in (*moments, "change"):
        table.add_column(name, justify="right", no_wrap=True)
    colours = {True: "green", False: "red", None: ""}
    for row in compare(before, after):
        table.add_row(row.label, row.before, Text(row.after, "bold"), Text(row.change, colours[row.better]))
    (console or Console()).print(table)


def _legend(rollouts: Sequence[Rollout]) -> Text:
    present = {segment.author for rollout in rollouts for one in rollout.trajectories for segment in one.segments}
    legend = Text.assemble(("authors: ", "dim"))
    for author in (author for author in Author if author in present):
        legend.append(author.value, f"bold {STYLES[author]}").append(" (trained on)  " if author.trained else "  ")
    return legend


def _headline(rollout: Rollout) -> str:
    parts = [f"reward {number(rollout.reward)}", rollout.stop.value]
    if calls := rollout.tool_calls:
        parts.append(f"{len(calls)} tool call{'s' * (len(calls) > 1)}: {', '.join(call.outcome for call in calls)}")
    if rollout.error:
        parts.append(rollout.error)
    return visible(", ".join(parts))


def _shortened(text: str, max_characters: int) -> str:
    text = visible(text).strip("\n")
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters omitted …\n{text[-half:]}"
