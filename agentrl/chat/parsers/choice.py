"""Choose the parser that reads the calls written by a chat template (`rollout.multi_turn.format=auto`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from agentrl.chat.base import ParsedTurn
from agentrl.chat.parsers.fit import ARGUMENTS, Calls, make_parser, probe_tool, reads, written_turn
from agentrl.chat.parsers.names import AUTO, TOKENIZER, tool_parsers
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

Probes = Sequence[tuple[Calls, str]]
"""Pairs: the calls of a turn, and the turn's text."""
FALLBACK = "hermes"
"""Format if no parser fits the chat template. Training with tools is then refused. Runs without tools and `agentrl
gateway` use this format."""
_FIRST, _SECOND = "look_up", "add_up"
_TOOLS = [probe_tool(_FIRST), probe_tool(_SECOND)]
_PROBES: Probes = (
    ([(_FIRST, ARGUMENTS)], ""),
    ([(_FIRST, {})], ""),
    ([(_FIRST, {"count": 1})], "I look it up."),
    ([(_FIRST, {"text": "a"}), (_SECOND, {"text": "null", "count": 2})], ""),
    ((), "No call [1], {2}."),
)


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """The format that fits a chat template.

    Attributes:
        name: name of the parser; `FALLBACK` if no parser is chosen.
        reason: why this parser is chosen.
        problem: why no parser can be chosen; "" if one is chosen.
    """

    name: str
    reason: str = ""
    problem: str = ""


class _Reading(NamedTuple):
    name: str
    turns: Sequence[ParsedTurn]

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(turn.content, turn.thinking.strip()) for turn in self.turns]


def format_of(name: str, chat: ChatFormat) -> str:
    """Return `name`; for `auto`, return the name of the format that fits the template."""
    return find_format(chat).name if name == AUTO else name


@lru_cache(maxsize=4)
def find_format(chat: ChatFormat) -> FoundFormat:
    """Find the built-in parser that reads the calls that the chat template writes.

    The template renders turns with one call, several calls, difficult arguments, no arguments, and no call. Each parser
    reads the rendered turns. Turns that the template refuses are skipped. If several parsers read all turns in the same
    way, the first in alphabetical order is chosen. The parser `tokenizer` is chosen only if no other parser reads all
    turns.
    """
    if written_turn(chat, _TOOLS, _PROBES[0][0]) is None:
        return FoundFormat(FALLBACK, problem="the chat template writes no tool calls")
    written = [(calls, written_turn(chat, _TOOLS, calls, content)) for calls, content in _PROBES]
    probes = [(calls, text) for calls, text in written if text is not None]
    readings = _readings(chat, probes)
    if not readings:
        names = ", ".join(tool_parsers.builtins())
        problem = f"no built-in format ({names}) reads the chat template's calls, {probes[0][1]!r}"
        return FoundFormat(FALLBACK, problem=f"{problem}: choose your own parser, or one of SGLang's, sglang/NAME")
    first, *others = readings
    if different := [other.name for other in others if other.texts != first.texts]:
        names = " and ".join([first.name, *different])
        problem = f"{names} read the chat template's calls, but different text around the calls: choose one format"
        return FoundFormat(FALLBACK, problem=problem)
    also = f", as do {', '.join(other.name for other in others)}" if others else ""
    return FoundFormat(first.name, f"reads the calls that the chat template writes{also}")


def _readings(chat: ChatFormat, probes: Probes) -> Sequence[_Reading]:
    """Return the parsed turns of each parser that reads all probes; try `tokenizer` only if no other parser does."""
    others = [name for name in tool_parsers.builtins() if name != TOKENIZER]
    for names in (others, [TOKENIZER]):
        if found := [reading for name in names if (reading := _reading(name, chat, probes))]:
            return found
    return ()


def _reading(name: str, chat: ChatFormat, probes: Probes) -> _Reading | None:
    try:
        parser = make_parser(name, chat)
    except ConfigError:  # the tokenizer has no description of turns
        return None
    turns = [turn for calls, text in probes if (turn := reads(parser, text, calls)) is not None]
    return _Reading(name, turns) if len(turns) == len(probes) else None
