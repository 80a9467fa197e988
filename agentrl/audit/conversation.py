"""A rollout as a conversation: messages and segments, matched turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.audit.reading.run_info import Json, LoopKind, RowOptions

UNPARSED = ("max_turn_tokens", "max_response_tokens", "deadline", "aborted")
"""Stop reasons that may cut off the last turn. Calls of a cut-off turn were not parsed."""

NO_TOKENIZER = "no tokenizer of the run"


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call; `index` is its position in the column's flat arrays."""

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
        segment: index of its segment in the flat arrays; -1 if it was cut off before its first token.
        ids: its tokens.
        text: decoded text without the end token; None if there is no tokenizer.
        closed: whether the turn ends with the end token.
        position: position of its message.
        replies: the messages that follow it; `reply` is their segment, -1 if there is none.
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
class AuditedTrajectory:
    """One trajectory.

    Attributes:
        index: position in the flat arrays.
        number: position in its rollout.
        fits: messages and segments match one to one, so that they can be compared.
    """

    index: int
    number: int
    messages: Sequence[Mapping[str, Json]]
    num_opening: int
    prompt: int
    turns: Sequence[Turn]
    fits: bool


@dataclass(frozen=True, slots=True)
class AuditedRollout:
    """One rollout. `kind` is the built-in agent loop; None if it is unknown, with the reason in `why`."""

    row: int
    kind: LoopKind | None
    why: str
    stop: str
    options: RowOptions
    task: Json
    trajectories: Sequence[AuditedTrajectory]
    calls: Sequence[Call]

    @property
    def failed(self) -> bool:
        """Whether the agent loop raised an error; the end of the rollout may then be missing."""
        return self.stop == "error"

    def calls_of(self, trajectory: int, turn: int) -> list[Call]:
        """The recorded calls of a turn."""
        return [call for call in self.calls if (call.trajectory, call.turn) == (trajectory, turn)]


def shows_images(messages: Sequence[Mapping[str, Json]]) -> bool:
    """Whether a message contains an image."""
    parts = (part for message in messages for part in _parts(message.get("content")))
    return any(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def text_content(content: Json) -> Json:
    """Content without images: the text parts, joined."""
    parts = _parts(content)
    if not all(isinstance(part, dict) and part.get("type") in ("text", "image") for part in parts) or not parts:
        return content
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _parts(content: Json) -> Sequence[Json]:
    return content if isinstance(content, list) else ()


def are_messages(value: Json) -> bool:
    """Whether a JSON value is a list of messages."""
    return isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
