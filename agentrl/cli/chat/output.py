"""Output of `agentrl chat`: as text on the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.chat.format import ChatFormat
from agentrl.chat.model_check import ModelCheck
from agentrl.chat.pieces import id_pieces
from agentrl.reporting.transcript import STYLES
from agentrl.security.visible_text import visible
from agentrl.types.trajectory import Author, Segment

_NARROW = 20
_AUTHORS = {Author.DEMONSTRATION: Author.MODEL}  # example turns are demonstrations; show the model as their author


def document(model: str, chat: ChatFormat, found: ModelCheck) -> dict[str, object]:
    """Return all findings and the conversation's tokens as a JSON document."""
    segments = found.conversation.segments if found.conversation else []
    return {
        "model": model,
        "accepted": not found.refusals,
        "format": found.tool_format,
        "parallel_calls": found.parallel_calls,
        "thoughts": found.thoughts,
        "stop_tokens": list(found.stop_tokens),
        "thinking_strip": found.unstripped or "accepted",
        "saved_conversations": found.unsaved or "accepted",
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
        "thinking=strip": f"refused: {found.unstripped}" if found.unstripped else "accepted",
        "saved conversations (SFT)": f"refused: {found.unsaved}" if found.unsaved else "accepted",
    }
    for name, value in rows.items():
        table.add_row(name, Text(visible(value)))
    return table


def _print_conversation(console: Console, chat: ChatFormat, segments: Sequence[Segment]) -> None:
    bar = "│" if console.encoding.startswith("utf") else "|"
    added = frozenset(chat.template.added_tokens.values())
    console.print(_legend(segments, bar))
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    width = max(_NARROW, console.width - max(len(_author(segment)) for segment in segments) - 1)
    for segment in segments:
        lines = Text("\n").join(_lines(_tokens(chat, segment, added, bar), width))
        table.add_row(Text(_author(segment), f"bold {STYLES[_author(segment)]}"), lines)
    console.print(table)
    console.print()


def _tokens(chat: ChatFormat, segment: Segment, added: frozenset[int], bar: str) -> Iterator[Text]:
    """Yield the text of each token, followed by a bar. Split a text with line breaks after each line break."""
    style = STYLES[_author(segment)]
    for token_id, piece in zip(segment.token_ids, id_pieces(chat.tokenizer, segment.token_ids), strict=True):
        shown = f"bold {style}" if token_id in added else style
        *lines, last = visible(piece).split("\n")
        for number, line in enumerate(lines, start=1):
            end = bar if number == len(lines) and not last else ""
            yield Text(f"{line}\\n", shown).append(end, "dim").append("\n")
        if last or not lines:
            yield Text(last, shown).append(bar, "dim")


def _lines(pieces: Iterable[Text], width: int) -> Iterator[Text]:
    """Join the texts of tokens to lines of at most `width` characters; a text that does not fit starts a new line."""
    line = Text()
    for piece in pieces:
        text, ends = piece[: len(piece.plain.rstrip("\n"))], piece.plain.endswith("\n")
        if line and line.cell_len + text.cell_len > width:
            yield line
            line = Text()
        while text.cell_len > width:
            yield text[:width]
            text = text[width:]
        line.append_text(text)
        if ends:
            yield line
            line = Text()
    if line:
        yield line


def _legend(segments: Sequence[Segment], bar: str) -> Text:
    legend = Text.assemble((f"{bar} ends a token; authors: ", "dim"))
    for author in dict.fromkeys(map(_author, segments)):
        legend.append(author, f"bold {STYLES[author]}").append(" (trained on)  " if author.trained else "  ")
    return legend


def _author(segment: Segment) -> Author:
    return _AUTHORS.get(segment.author, segment.author)
