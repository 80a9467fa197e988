"""Reads the queries of a call of a search tool, and builds the text that the model gets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agentrl.tools.base import ToolError
from agentrl.types.messages import FunctionSchema, ToolSchema

MAX_QUERIES, MAX_QUERY_CHARS = 32, 4_000
"""Maximum number of queries in a call, and of characters in a query."""

Found = Sequence[Sequence[str]]
"""One list of passages per query, best passage first. The first line of a passage is its title."""

_NOTHING = "No search results found."


def search_schema(name: str = "search", description: str | None = None) -> ToolSchema:
    """Return the schema that the model sees: one argument, a list of queries."""
    queries: dict[str, JsonValue] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Queries; each returns its best passages.",
    }
    parameters: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"query_list": queries},
        "required": ["query_list"],
    }
    text = description or "Search for passages that answer a query."
    return ToolSchema(function=FunctionSchema(name=name, description=text, parameters=parameters))


def queries_of(arguments: Mapping[str, JsonValue]) -> list[str]:
    """Return the queries of a call. Lone surrogates, which UTF-8 cannot encode, become question marks.

    Raises:
        ToolError: `query_list` is not a list of texts, is empty or too long, or contains a blank or too long query.
    """
    given = arguments.get("query_list")
    if not isinstance(given, list) or not given:
        raise ToolError("'query_list' must be a list of one or more queries")
    if len(given) > MAX_QUERIES:
        raise ToolError(f"'query_list' has {len(given)} queries, at most {MAX_QUERIES} are allowed")
    return [_query(query) for query in given]


def _query(query: JsonValue) -> str:
    if not isinstance(query, str) or not query.strip():
        raise ToolError("each query must be a text that is not empty")
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(f"a query has {len(query)} characters, at most {MAX_QUERY_CHARS} are allowed")
    return query.encode("utf-8", "replace").decode()


def shown(found: Found, max_chars: int | None = None) -> str:
    """Return the text for the model, in verl's format: a JSON object with the numbered passages of each query.

    Args:
        max_chars: maximum characters of a passage's text; None: no limit.
    """
    listed = "\n---\n".join(_listed(passages, max_chars) for passages in found) if any(found) else _NOTHING
    return json.dumps({"result": listed}, ensure_ascii=False)


def _listed(passages: Sequence[str], max_chars: int | None) -> str:
    parts = [passage.partition("\n") for passage in passages]
    texts = (f"Doc {number} (Title: {title})\n{text[:max_chars]}" for number, (title, _, text) in enumerate(parts, 1))
    return "\n\n".join(texts).strip() or _NOTHING
