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
        name: tool name; "" if the name could not be parsed.
        arguments: the arguments as JSON text; for a malformed call, the text that the model wrote.
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
        content: text of the turn without calls and thoughts.
        thinking: thoughts of the turn, without their tags.
    """

    content: str
    calls: tuple[ParsedCall, ...] = ()
    thinking: str = ""


class ToolParser(Protocol):
    """Parser of tool calls in the text of a model turn. The result depends only on that text.

    The text starts at the beginning of the turn. If the generation prompt already opens the thoughts, the caller puts
    this opening before the sampled text. So thoughts always begin with their mark. A turn that is truncated inside its
    thoughts has only thoughts. A truncated call is returned with an `error`, so it is never run.

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
        """Return the token ids that replace the placeholder `place` for an image with these bytes.

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
        """Split a turn, which may be truncated, into (thoughts without marks, rest of the turn)."""
        ...


def parser_for(parser: ToolParser, schemas: Sequence[ToolSchema]) -> ToolParser:
    """Return `parser`, bound to the tools' schemas if it needs schemas."""
    return parser.for_tools(schemas) if isinstance(parser, SchemaReader) else parser
