"""Instructions for a model that plays the user."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentrl.errors import DataError

_PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_ROLE = (
    "You play a user who talks to an AI assistant. Write only the user's next message, in the user's own words."
    " Do not write the assistant's part. Do not say that you play a role."
)
_RULES = (
    "Tell the assistant only what you know from this description, and only what is needed now. Invent no names, numbers"
    " or other facts. Do not do the assistant's work."
)
_STOP = "When you have what you want, or it is clear that you cannot get it, write only {{ stop }}"
ASK_SCORE = (
    "Leave the conversation for a moment. How much did the assistant's last message help you to reach your goal?"
    " Reply with one number from {low:g} (not at all) to {high:g} (as well as possible), and nothing else."
)


class UserPrompt:
    """Instructions with placeholders for a row's values.

    Args:
        text: instructions with placeholders such as `{{ goal }}`; None: built-in instructions.
        values: configured values, which a row may replace. If `text` has a placeholder whose value is None, each row
            must have a value for the placeholder.
    """

    def __init__(self, text: str | None, values: Mapping[str, str | None]) -> None:
        self._text, self._values = text, values

    @property
    def names(self) -> set[str]:
        """Names of the placeholders in the configured text."""
        return set(_PLACE.findall(self._text or ""))

    def check(self, given: Mapping[str, object]) -> None:
        """Reject a row that lacks a value for a placeholder.

        Raises:
            DataError: a value is missing, or `persona` or `goal` is not text.
        """
        for name in ("persona", "goal"):
            if name in given and not isinstance(given[name], str):
                raise DataError(f"interaction_kwargs.{name} must be text, not {given[name]!r:.60}")
        missing = sorted(name for name in self.names if given.get(name, self._values.get(name)) is None)
        if missing:
            raise DataError(f"interaction_kwargs.{missing[0]} is missing: the simulated user's prompt names it")

    def fill(self, given: Mapping[str, object]) -> str:
        """Return the instructions for one conversation.

        Raises:
            DataError: see `check`.
        """
        self.check(given)
        values = {**self._values, **given}
        text = self._text if self._text is not None else _built_in(values)
        return _PLACE.sub(lambda place: str(values[place[1]]), text)


def _built_in(values: Mapping[str, object]) -> str:
    parts = [_ROLE]
    parts += ["Who you are: {{ persona }}"] if values.get("persona") else []
    parts += ["What you want: {{ goal }}"] if values.get("goal") else []
    parts += [_RULES, *([_STOP] if values.get("stop") else [])]
    return "\n\n".join(parts)
