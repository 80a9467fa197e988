"""Output of code in a sandbox, collected as it arrives."""

from __future__ import annotations

from typing import Protocol

from agentrl.sandboxes.base import MAX_OUTPUT_CHARS, shortened
from agentrl.sandboxes.e2b.answers import MAX_ANSWER_BYTES, AnswerTooLongError


class Chunk(Protocol):
    """A value that code displays. A value without text has other formats, such as an image."""

    text: str | None

    def formats(self) -> list[str]:
        """Return the names of the formats."""
        ...


class Output:
    """Collects text in the order of writing. Of a long output, only the start and the end are kept."""

    def __init__(self) -> None:
        self._start, self._end, self._num_chars = "", "", 0

    def add(self, text: str) -> None:
        """Add text.

        Raises:
            AnswerTooLongError: the total text is too long.
        """
        text = text.encode("utf-8", "replace").decode()  # JSON can contain lone surrogates
        self._num_chars += len(text)
        if self._num_chars > MAX_ANSWER_BYTES:
            raise AnswerTooLongError
        room = max(0, MAX_OUTPUT_CHARS - len(self._start))
        self._start += text[:room]
        self._end = (self._end + text[room:])[-MAX_OUTPUT_CHARS:]

    def add_result(self, result: Chunk) -> None:
        """Add the value of a last expression, or a displayed value."""
        self.add(f"{', '.join(result.formats()) if result.text is None else result.text}\n")

    def text(self) -> str:
        """Return the kept text."""
        if self._num_chars <= 2 * MAX_OUTPUT_CHARS:
            return shortened(self._start + self._end)
        half = MAX_OUTPUT_CHARS // 2
        left_out = f"\n[{self._num_chars - 2 * half} characters left out]\n"
        return self._start[:half] + left_out + self._end[-half:]
