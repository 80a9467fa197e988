"""Endpoints of the gateway and their dialects."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from agentrl.gateway.dialects.fields import JsonObject
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.responses import RESPONSES

TURNS: Mapping[str, Dialect] = {
    "chat/completions": CHAT_COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}
"""Path after `/v1/` -> dialect, for the endpoints that answer with a turn of the model."""
COUNT_TOKENS = "messages/count_tokens"
MODELS = "models"


def dialect_of(path: str) -> Dialect:
    """Return the dialect in which a path's errors are written."""
    return MESSAGES if path.startswith("messages") else TURNS.get(path, CHAT_COMPLETIONS)


def allowed_methods(path: str) -> tuple[str, ...]:
    """Return the HTTP methods that a path accepts; empty if the path is not an endpoint."""
    if path in TURNS or path == COUNT_TOKENS:
        return ("POST",)
    return ("GET", "HEAD") if path in ("", MODELS) or path.startswith(f"{MODELS}/") else ()


def model(name: str) -> JsonObject:
    """Return the description of a model, with the keys that OpenAI and Anthropic use."""
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "agentrl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }


def models(name: str) -> JsonObject:
    """Return the list of models, which contains only the policy."""
    return {"object": "list", "data": [model(name)], "has_more": False, "first_id": name, "last_id": name}
