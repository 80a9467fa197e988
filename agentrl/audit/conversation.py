"""A rollout as a conversation: messages and segments, matched turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from agentrl.audit.reading.run_info import Json, LoopKind, RowOptions

UNPARSED = ("max_turn_tokens", "max_response_tokens", "deadline", "aborted")
"""Stop reasons that may cut off the last turn. Calls of a cut-off turn were not parsed."""

NO_TOKENIZER = "no tokenizer of the run"


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call; `index` is its position in the flat arrays of `tool_calls` (see `reading.table`)."""

    index: int
    name: str
    arguments: str
    result: str
    outcome: str
    num_tokens: int
    turn: int
    trajectory: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded operation of a conversation: an action that added messages or segments, such as a model turn.

    Attributes:
        index: position in the flat arrays of `operations` (see `reading.table`).
        num_before: number of operations of the rollout that had ended when this operation began.
        first_segment, first_message: number of segments and messages of the trajectory before the operation.
    """

    index: int
    kind: str
    trajectory: int
    num_before: int
    first_segment: int
    num_segments: int
    first_message: int
    num_messages: int
    num_calls: int
    detail: str


@dataclass(frozen=True, slots=True)
class Wording:
    """How a conversation writes tools and answers to calls.

    Attributes:
        form: `chat` (tool messages), `react` (observations in a user message), `gateway` (the program that uses the
            gateway writes the answers), or `own` (a custom conversation class writes messages in an unknown form).
        call_format: the format of calls in the model's text; None: calls are not parsed.
        names: the tools that the model may call.
        template_tools: schemas that the chat template shows; None if they were not saved.
        tools: schemas of the tools that the model may call.
        turn_format: the format of the model's turns, set even if calls are not parsed, because the format may have
            marks for thoughts.
    """

    form: str
    call_format: str | None
    names: Set[str]
    template_tools: Sequence[Json] | None
    tools: Sequence[Json] = ()
    turn_format: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model.

    Attributes:
        segment: index of its segment in the flat arrays (see `reading.table`); -1 if the turn was cut off before its
            first token.
        ids: its token ids.
        text: decoded text without the end token; None if there is no tokenizer.
        closed: whether the turn ends with the end token.
        position: position of the turn's message among the trajectory's messages.
        replies: the messages that follow the turn.
        reply: index of the segment of `replies`; -1 if there is none.
        ran: whether the loop passed the turn's calls to the tools; a custom loop may ignore calls.
        num_used: number of calls of the rollout before this turn's calls, for the limit of calls. None: only the calls
            of the trajectory's earlier turns count towards the limit.
        num_beside: number of further calls that parallel conversations may have begun before this turn's calls.
    """

    segment: int
    ids: Sequence[int]
    text: str | None
    closed: bool
    position: int
    message: Mapping[str, Json]
    replies: Sequence[Mapping[str, Json]]
    reply: int
    ran: bool = True
    num_used: int | None = None
    num_beside: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages that a custom loop appended after turn number `turn` (-1: before the first turn), and their segment."""

    turn: int
    segment: int
    messages: Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class AuditedTrajectory:
    """One trajectory.

    Attributes:
        index: position in the flat arrays (see `reading.table`).
        number: position in its rollout.
        num_opening: number of messages in the trajectory's prompt.
        fits: whether messages and segments match one to one, so that they can be compared.
        first_turn: number that the trajectory's first model turn has in its conversation, counted from 0. It is the
            count of model turns in all trajectories that this trajectory continues; 0 for a branch.
        parent: the trajectory that this trajectory continues.
        branches: whether its prompt copies the beginning of `parent`. Only the `parent` of a branch may have a higher
            number than the trajectory itself.
        rendered: whether its prompt is the history of `parent`, rendered again. If so, this trajectory and `parent`
            belong to one conversation.
        first_prompt: segment of the conversation's first prompt; all tokens after it are response tokens. -1: the
            trajectory's own prompt is the first prompt.
        opened_with_task: whether the first messages come from the task.
        of_agent: whether a model turn started this trajectory as a sub-agent, so that limits of sub-agents apply.
        appended: everything that a custom loop appended before, between and after model turns.
        opened: the end of the generation prompt if it opens the model's thoughts, for example `<think>`; else "".
    """

    index: int
    number: int
    messages: Sequence[Mapping[str, Json]]
    num_opening: int
    prompt: int
    turns: Sequence[Turn]
    fits: bool
    wording: Wording
    first_turn: int = 0
    parent: int | None = None
    branches: bool = False
    rendered: bool = False
    first_prompt: int = -1
    opened_with_task: bool = True
    appended: Sequence[Appended] = ()
    opened: str = ""
    of_agent: bool = False


@dataclass(frozen=True, slots=True)
class AuditedRollout:
    """One rollout.

    Attributes:
        kind: the kind of agent loop; None if the loop is unknown.
        why: the reason why the loop is unknown; else "".
        stop: the stop reason.
    """

    row: int
    kind: LoopKind | None
    why: str
    stop: str
    options: RowOptions
    task: Json
    trajectories: Sequence[AuditedTrajectory]
    calls: Sequence[Call]
    operations: Sequence[Operation] = ()

    @property
    def own(self) -> bool:
        """Whether the audit finds the rollout's turns by its recorded operations, not by the rules of a built-in loop.

        This is true for custom agent loops, and for task folders of several steps.
        """
        return self.kind == "own"

    @property
    def by_gateway(self) -> bool:
        """Whether an external program made the rollout through the gateway (`agentrl.gateway`).

        If so, the conversations of the rollout share one turn limit.
        """
        return any(trajectory.wording.form == "gateway" for trajectory in self.trajectories)

    @property
    def num_turns(self) -> int:
        """Number of turns of all trajectories."""
        return sum(len(trajectory.turns) for trajectory in self.trajectories)

    @property
    def failed(self) -> bool:
        """Whether the agent loop raised an error; the end of the rollout may then be missing."""
        return self.stop == "error"

    def calls_of(self, trajectory: AuditedTrajectory, turn: int) -> list[Call]:
        """The recorded calls of turn number `turn` of a trajectory; the first turn is 0."""
        place = (trajectory.number, trajectory.first_turn + turn)
        return [call for call in self.calls if (call.trajectory, call.turn) == place]


def shows_images(messages: Sequence[Mapping[str, Json]]) -> bool:
    """Whether a message contains an image."""
    parts = (part for message in messages for part in _parts(message.get("content")))
    return any(isinstance(part, dict) and part.get("type") == "image" for part in parts)


def text_content(content: Json) -> Json:
    """Return the text parts of a content, joined, without its images. Content of another form is returned unchanged."""
    parts = _parts(content)
    if not all(isinstance(part, dict) and part.get("type") in ("text", "image") for part in parts) or not parts:
        return content
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def _parts(content: Json) -> Sequence[Json]:
    return content if isinstance(content, list) else ()


def are_messages(value: Json) -> bool:
    """Whether a JSON value is a list of messages."""
    return isinstance(value, list) and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
