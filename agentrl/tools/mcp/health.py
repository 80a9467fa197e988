"""Health of a session of an MCP server: whether the session is lost, the reason, and the server's output."""

from __future__ import annotations

from agentrl.security.redaction import redacted_text

MAX_MESSAGE_BYTES = 8 * 2**20
"""Maximum bytes of one message of a server."""
MAX_UNASKED = 10_000
"""Maximum number of consecutive messages that are not answers."""
OUTPUT_ENDED = "its output ended"
_TAIL_BYTES = 4000
_SHOWN = 600


class Health:
    """Health of one session.

    Attributes:
        lost: whether the session cannot be used any more.
        status: exit status of a process that ended by itself.
    """

    def __init__(self) -> None:
        self.lost = False
        self.status: int | None = None
        self._why = ""
        self._num_unasked = 0
        self._errors, self._unreadable = b"", b""

    def lose(self, why: str = "") -> None:
        """Mark the session as lost; the first reason is kept."""
        if not self.lost:
            self.lost, self._why = True, why

    @property
    def ended_by_itself(self) -> bool:
        """Whether the server closed its output, which means that it has ended or is about to end."""
        return self._why == OUTPUT_ENDED

    def received(self, is_answer: bool) -> None:
        """Count a message. The session is lost after too many messages in a row that are not answers."""
        self._num_unasked = 0 if is_answer else self._num_unasked + 1
        if self._num_unasked > MAX_UNASKED:
            self.lose(f"it sent {MAX_UNASKED} messages in a row that answer no request")

    def unreadable(self, line: bytes) -> None:
        """Keep the first output that is not a message."""
        self._unreadable = self._unreadable or line[:_TAIL_BYTES]

    def wrote_error(self, chunk: bytes) -> None:
        """Keep the end of the error output."""
        self._errors = (self._errors + chunk)[-_TAIL_BYTES:]

    def describe(self, reason: str) -> str:
        """Return why the session failed, on one line and without secrets."""
        found = [reason, self._why if self.status is None else f"it ended with status {self.status}"]
        if self._unreadable:
            found.append(f"its output has lines that are not messages: {_shown(self._unreadable[:200])}")
        if self._errors.strip():
            found.append(f"its error output ends: {_shown(self._errors)}")
        return redacted_text("; ".join(filter(None, found)))


def _shown(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else f"… {text[-_SHOWN:]}"
