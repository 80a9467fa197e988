"""Texts about failed tool calls: for the model, and for the log."""

from __future__ import annotations

UNTYPED = (
    "; the model reads this as a tool_error and is trained on the rollout: raise ToolError to say so, or InfraError if "
    "the failure says nothing about the policy"
)
"""Hint for an exception that is neither a `ToolError` nor an `InfraError`."""


def as_error(text: str) -> str:
    """Text of a `ToolError` for the model: "Error: " is added unless the text begins with it."""
    return text if text.startswith("Error: ") else f"Error: {text}"


def describe(error: BaseException) -> str:
    """Type and text of the exception, even if its own `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a user's exception class may do anything
        return type(error).__name__
