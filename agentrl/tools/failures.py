"""Texts about failed tool calls: for the model, and for the log."""

from __future__ import annotations

UNTYPED = (
    "; the outcome is tool_error, and the rollout is trained on: raise ToolError to confirm this, or InfraError if "
    "the failure does not depend on the policy"
)
"""Hint for an exception that is neither a `ToolError` nor an `InfraError`."""


def as_error(text: str) -> str:
    """Return the text of a `ToolError` for the model. "Error: " is added unless the text begins with "Error: "."""
    return text if text.startswith("Error: ") else f"Error: {text}"


def describe(error: BaseException) -> str:
    """Return type and text of the exception; only the type if the exception's `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a user's exception class may do anything
        return type(error).__name__
