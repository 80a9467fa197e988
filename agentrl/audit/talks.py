"""A rollout as a conversation: its messages beside its segments, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.audit.known import Json, LoopKind, RowOptions

UNPARSED = ("max_turn_tokens", "max_response_tokens", "deadline", "aborted")
"""Stops that may cut the last turn short: then no call in it was read."""

NO_SPEECH = "there is no tokenizer of the run"


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call, `index` in the column's flat arrays."""

    index: int
    name: str
    arguments: str
    result: str
    outcome: str
    num_tokens: int
    turn: int
    trajectory: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model.

    Attributes:
        segment: where its tokens are, in the flat arrays; -1 where it was cut off before its first token.
        ids: its tokens.
        text: what they say, without the token that ends it; None where there is no tokenizer.
        closed: whether it ended itself.
        position: of its message.
        replies: the messages that follow it; `reply` is their segment, -1 where there is none.
    """

    segment: int
    ids: Sequence[int]
    text: str | None
    closed: bool
    position: int
    message: Mapping[str, Json]
    replies: Sequence[Mapping[str, Json]]
    reply: int


@dataclass(frozen=True, slots=True)
class Talk:
    """One trajectory. `index` is its place in the flat arrays, `number` that in its rollout; `fits` where messages and
    segments tell the same story, so that they can be held against each other."""

    index: int
    number: int
    messages: Sequence[Mapping[str, Json]]
    num_opening: int
    prompt: int
    turns: Sequence[Turn]
    fits: bool


@dataclass(frozen=True, slots=True)
class Talked:
    """One rollout. `kind` is its built-in agent loop; None and `why` where that is not known."""

    row: int
    kind: LoopKind | None
    why: str
    stop: str
    options: RowOptions
    task: Json
    talks: Sequence[Talk]
    calls: Sequence[Call]

    @property
    def failed(self) -> bool:
        """Whether its loop raised: then its end may be missing."""
        return self.stop == "error"

    def calls_of(self, trajectory: int, turn: int) -> list[Call]:
        """The recorded calls of a turn."""
        return [call for call in self.calls if (call.trajectory, call.turn) == (trajectory, turn)]


def shows_images(messages: Sequence[Mapping[str, Json]]) -> bool:
    """Whether a content has a part that is an image."""
    parts = (part for message in messages for part in _parts(message.get("content")))
    return any(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def spoken(content: Json) -> Json:
    """A content without its images: what is left of text in parts, joined."""
    parts = _parts(content)
    if not all(isinstance(part, dict) and part.get("type") in ("text", "image") for part in parts) or not parts:
        return content
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _parts(content: Json) -> Sequence[Json]:
    return content if isinstance(content, list) else ()


def are_messages(value: Json) -> bool:
    """Whether a JSON value is a list of messages."""
    return isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
