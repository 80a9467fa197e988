"""Results of the audit's parsers of tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.audit.reading.run_info import Json


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it.

    Attributes:
        arguments: an object; None if the call is malformed.
        text: the raw text, which replaces the arguments of a malformed call.
    """

    name: str
    arguments: Mapping[str, Json] | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed turn: its text, stripped, and its calls in order.

    Attributes:
        thoughts: the model's thoughts; None: the text contains them, between `<think>` and `</think>`.
        together: text and thoughts in one text, as older runs saved them; None in formats that those runs did not have.
    """

    content: str
    calls: tuple[Call, ...] = ()
    thoughts: str | None = None
    together: str | None = None


def storable(text: str) -> bool:
    """Whether the text has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
