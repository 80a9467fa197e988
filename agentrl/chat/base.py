"""What a model turn says once its text is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentrl.messages import ToolSchema


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call read from a model's text.

    Attributes:
        name: "" where it could not be read.
        arguments: JSON text as the model wrote it.
        error: what is wrong with it, written for the model to read; None for a well-formed call.
    """

    name: str
    arguments: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A model turn: `content` is its text without the calls."""

    content: str
    calls: tuple[ParsedCall, ...] = ()


class ToolParser(Protocol):
    """Finds tool calls in the text of a model turn. A pure function of that text.

    Attributes:
        stop: strings at which a turn must end for this format ("Observation:" for ReAct).
    """

    stop: tuple[str, ...]

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn. Never raises on what a model wrote: a malformed call comes back with its `error`."""
        ...


class ImageTokens(Protocol):
    """What a model's processor writes for an image.

    Attributes:
        places: texts that a chat template may write where an image belongs.
    """

    places: tuple[str, ...]

    def tokens(self, place: str, data: bytes) -> Sequence[int]:
        """The ids that take the place of `place`'s own, for an image with these bytes.

        Raises:
            ImageError: the processor refuses the image.
        """
        ...


@runtime_checkable
class SchemaReader(Protocol):
    """A tool parser whose format leaves the types of arguments to the tools' schemas."""

    def for_tools(self, schemas: Sequence[ToolSchema]) -> ToolParser:
        """The parser for turns that are offered these tools."""
        ...


def parser_for(parser: ToolParser, schemas: Sequence[ToolSchema]) -> ToolParser:
    """`parser`, told of the tools on offer if it asks for them."""
    return parser.for_tools(schemas) if isinstance(parser, SchemaReader) else parser
