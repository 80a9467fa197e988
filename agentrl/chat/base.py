"""Parsed model turns, and protocols of tool parsers and image processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from agentrl.types.messages import ToolSchema


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call read from a model's text.

    Attributes:
        name: tool name, "" if it could not be parsed.
        arguments: JSON text as the model wrote it.
        error: error message for the model; None for a well-formed call.
    """

    name: str
    arguments: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A model turn.

    Attributes:
        content: its text without calls and thoughts.
        thinking: its thoughts, without their tags.
    """

    content: str
    calls: tuple[ParsedCall, ...] = ()
    thinking: str = ""


class ToolParser(Protocol):
    """Parser of tool calls in the text of a model turn. The result depends only on that text.

    Attributes:
        stop: stop strings that this format needs ("Observation:" for ReAct).
    """

    stop: tuple[str, ...]

    def parse(self, text: str) -> ParsedTurn:
        """Parse one turn. Never raises an error: a malformed call is returned with its `error`."""
        ...


class ImageTokens(Protocol):
    """Tokens that a model's processor writes for an image.

    Attributes:
        places: image placeholders that a chat template may write.
    """

    places: tuple[str, ...]

    def tokens(self, place: str, data: bytes) -> Sequence[int]:
        """Token ids that replace the placeholder `place` for an image with these bytes.

        Raises:
            ImageError: the processor refuses the image.
        """
        ...


@runtime_checkable
class SchemaReader(Protocol):
    """Tool parser that needs the tools' schemas to determine the types of arguments."""

    def for_tools(self, schemas: Sequence[ToolSchema]) -> ToolParser:
        """Return a parser for turns in which these tools are available."""
        ...


def parser_for(parser: ToolParser, schemas: Sequence[ToolSchema]) -> ToolParser:
    """Return `parser`, bound to the tools' schemas if it needs them."""
    return parser.for_tools(schemas) if isinstance(parser, SchemaReader) else parser
