"""Parsed model turns, and protocols of tool parsers and image processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentrl.types.messages import ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call read from a model's text.

    Attributes:
        name: tool name, "" if it could not be parsed.
        arguments: JSON text as the model wrote it.
        error: error message for the model; None for a well-formed call.
        call_id: id that the model wrote for the call; "" in formats without ids.
    """

    name: str
    arguments: str
    error: str | None = None
    call_id: str = ""


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

    The text is a turn from its beginning. If the generation prompt begins the thoughts, the caller puts that beginning
    before what the model sampled, so thoughts always begin with their mark. A turn cut inside its thoughts is only
    thoughts. A call that is cut is returned with an `error`, so it is never run.

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


@runtime_checkable
class TokenizerReader(Protocol):
    """Tool parser that needs the model's tokenizer."""

    def for_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> ToolParser:
        """Return a parser for the model with this tokenizer.

        Raises:
            ConfigError: the parser cannot be used with this tokenizer.
        """
        ...


@runtime_checkable
class ThoughtReader(Protocol):
    """Tool parser whose format has its own marks around thoughts, other than `<think>` and `</think>`."""

    def split_thinking(self, text: str) -> tuple[str, str]:
        """Split a turn, which may be cut, into (thoughts without marks, text after them)."""
        ...


def parser_for(parser: ToolParser, schemas: Sequence[ToolSchema]) -> ToolParser:
    """Return `parser`, bound to the tools' schemas if it needs schemas."""
    return parser.for_tools(schemas) if isinstance(parser, SchemaReader) else parser
