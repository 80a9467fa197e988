"""Converts the result of an MCP server's tool to an answer for the model."""

from __future__ import annotations

import ast
import binascii
import json
from base64 import b64decode
from collections.abc import Iterable
from contextlib import suppress

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from pydantic import JsonValue

from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import ToolError
from agentrl.tools.mcp.entries import Reading
from agentrl.tools.result import Answer
from agentrl.utils.images import ImageError, read_image

_MAX_IMAGES = 16
_SHOWN = 200


def read_result(result: CallToolResult, reading: Reading = "all") -> Answer:
    """Return the texts and images of a result.

    Raises:
        ToolError: the tool reports an error, or an image cannot be used.
    """
    if result.is_error:
        raise ToolError(_text(result.content) or "the tool failed without a message")
    if reading == "search_results":
        return Answer(_search_results(result.content))
    text = _text(result.content)
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False, default=str)
    images = _images(result.content)
    return Answer(text if text or images else "[no output]", images=images, optional_images=True)


def _text(content: Iterable[ContentBlock]) -> str:
    return "\n".join(text for text in map(_text_of, content) if text)


def _text_of(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            return ""
        case AudioContent():
            return _binary(block.mime_type, block.data)
        case ResourceLink():
            return f"[resource {block.name[:_SHOWN]}: {block.uri}]"
        case EmbeddedResource():
            resource = block.resource
            return (
                _binary(resource.mime_type, resource.blob)
                if isinstance(resource, BlobResourceContents)
                else resource.text
            )


def _binary(kind: str | None, data: str) -> str:
    return f"[{(kind or 'binary data')[:_SHOWN]}, {len(data) * 3 // 4} bytes]"


def _images(content: Iterable[ContentBlock]) -> list[bytes]:
    given = [block for block in content if isinstance(block, ImageContent)]
    if len(given) > _MAX_IMAGES:
        raise ToolError(f"the tool answered with {len(given)} images, at most {_MAX_IMAGES} are read")
    try:
        return [read_image(b64decode(block.data, validate=True)) for block in given]
    except (ImageError, binascii.Error) as error:
        raise ToolError(f"the tool answered with an image that cannot be used: {error}") from error


def _search_results(content: Iterable[ContentBlock]) -> str:
    """Return only the `results` lists in the JSON texts, as verl's MCPSearchTool does; without any list, the texts."""
    texts = [block.text for block in content if isinstance(block, TextContent)]
    found = [results for results in map(_results, texts) if results is not None]
    return "".join(json.dumps(results, ensure_ascii=False) for results in found) if found else "\n".join(texts)


def _results(text: str) -> list[JsonValue] | None:
    value: object = None
    try:
        value = read_json(text)
    except UnreadableAnswerError:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):  # some servers write Python literals
            value = ast.literal_eval(text)
    results = value.get("results") if isinstance(value, dict) else None
    return results if isinstance(results, list) else None
