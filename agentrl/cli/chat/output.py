"""Output of `agentrl chat`: on the terminal, in 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentrl.chat.format import ChatFormat
from agentrl.chat.model_check import ModelCheck
from agentrl.chat.pieces import id_pieces
from agentrl.reporting.transcript import STYLES
from agentrl.security.visible_text import visible
from agentrl.types.trajectory import Author, Segment

_AUTHORS = {Author.DEMONSTRATION: Author.MODEL}  # the example's model turns are not sampled


def document(model: str, chat: ChatFormat, found: ModelCheck) -> dict[str, object]:
    """All findings and the conversation's tokens as a JSON document."""
    segments = found.conversation.segments if found.conversation else []
    return {
        "model": model,
        "accepted": not found.refusals,
        "format": found.tool_format,
        "parallel_calls": found.parallel_calls,
        "thoughts": found.thoughts,
        "stop_tokens": list(found.stop_tokens),
        "refusals": [{"what": each.what, "why": each.why} for each in found.refusals],
        "segments": [_segment(chat, segment) for segment in segments],
    }


def _segment(chat: ChatFormat, segment: Segment) -> dict[str, object]:
    pieces = zip(segment.token_ids, id_pieces(chat.tokenizer, segment.token_ids), strict=True)
    return {
        "author": _author(segment),
        "trained": segment.author.trained,
        "tokens": [{"id": token_id, "text": text} for token_id, text in pieces],
    }


def print_check(model: str, chat: ChatFormat, found: ModelCheck, console: Console | None = None) -> None:
    """Print the findings, the conversation token by token, and what is refused."""
    console = console or Console()
    console.print(_facts(model, found))
    if found.conversation:
        _print_conversation(console, chat, found.conversation.segments)
    for each in found.refusals:
        console.print(Text.assemble((f"refused: {each.what}: ", "bold red"), visible(each.why)), soft_wrap=True)
    if not found.refusals:
        console.print(Text("accepted: tools, their results and further user messages", "bold green"))


def _facts(model: str, found: ModelCheck) -> Table:
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False, show_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    calls = {True: "one or several", False: "one"}[found.parallel_calls]
    rows = {
        "model": model,
        "format of tool calls": found.tool_format or "none",
        "calls in a turn": calls if found.tool_format else "none",
        "thoughts of earlier turns": found.thoughts or "unknown",
        "a turn ends with": "  ".join(found.stop_tokens) or "nothing",
    }
    for name, value in rows.items():
        table.add_row(name, Text(visible(value)))
    return table


def _print_conversation(console: Console, chat: ChatFormat, segments: list[Segment]) -> None:
    bar = "│" if console.encoding.startswith("utf") else "|"
    added = frozenset(chat.template.added_tokens.values())
    console.print(_legend(segments, bar))
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for segment in segments:
        style = STYLES[_author(segment)]
        tokens = Text().join(_tokens(chat, segment, added, bar))
        table.add_row(Text(_author(segment), f"bold {style}"), tokens)
    console.print(Padding(table, (0, 0, 1, 0)))


def _tokens(chat: ChatFormat, segment: Segment, added: frozenset[int], bar: str) -> Iterator[Text]:
    """The text of each token, with a bar after it. A line break is shown, and also made."""
    style = STYLES[_author(segment)]
    for token_id, piece in zip(segment.token_ids, id_pieces(chat.tokenizer, segment.token_ids), strict=True):
        shown = visible(piece)
        ends = len(shown) - len(shown.rstrip("\n"))
        text = Text(shown[: len(shown) - ends].replace("\n", "\\n\n"), f"bold {style}" if token_id in added else style)
        yield text.append("\\n" * ends).append(bar, "dim").append("\n" * bool(ends))


def _legend(segments: list[Segment], bar: str) -> Text:
    legend = Text.assemble((f"{bar} ends a token; authors: ", "dim"))
    for author in dict.fromkeys(map(_author, segments)):
        legend.append(author, f"bold {STYLES[author]}").append(" (trained on)  " if author.trained else "  ")
    return legend


def _author(segment: Segment) -> Author:
    return _AUTHORS.get(segment.author, segment.author)
