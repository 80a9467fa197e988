"""Types that all modules of the gateway share: a request in any dialect, its answer, and a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agentrl.types.messages import Message, ToolSchema


class Finish(StrEnum):
    """Why a turn ended."""

    STOP = "stop"  # the model or a stop string ended the turn
    CALLS = "calls"  # the model ended a turn with tool calls
    LENGTH = "length"  # the maximum number of tokens was reached


class Refusal(StrEnum):
    """Why a request is refused; each reason has an HTTP status, and a code that clients check."""

    INVALID = "invalid"  # 400: malformed, or has a parameter that the gateway does not support
    KEY = "key"  # 401: no session has the key of the request
    TOO_LONG = "too_long"  # 400: the context has no room for an answer
    ENDED = "ended"  # 400: the rollout has ended, or reached a limit
    FAILED = "failed"  # 500: the engine or the gateway failed


class RequestError(Exception):
    """A request is refused; the text is for the user of the client."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A request for the model's next turn.

    Attributes:
        messages: the conversation. Roles are `system` (also for `developer`), `user`, `assistant` and `tool`.
            Assistant messages have `tool_calls` with ids, and arguments as the client sent them (JSON text, or an
            object); thoughts are in `reasoning_content`. Tool messages have `tool_call_id`. Images are parts
            `{"type": "image", "image": NAME}`, where NAME is a key of `images`.
        max_tokens: maximum number of tokens of the turn; None: the client sets no limit.
        stop: strings that end the turn.
        images: content hash of an image -> bytes of the image, for all images in the messages.
        is_retry: whether the client marked the request as a repetition.
        ignored: parameters of the request that have no effect, such as `temperature`, which the run's configuration
            sets.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    images: Mapping[str, bytes] = field(default_factory=dict)
    is_retry: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """A tool call of an answer.

    Attributes:
        call_id: id made by the gateway, unique among all rollouts; clients send it back.
        name: "" if the call has no readable name.
        arguments: JSON text of an object, or the model's own text if the call is malformed.
        error: why the call is malformed; "" if it is well-formed.
    """

    call_id: str
    name: str
    arguments: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn of the model.

    Attributes:
        turn_id: id made by the gateway, unique among all rollouts.
        content: text of the turn without calls and thoughts.
    """

    turn_id: str
    content: str
    thinking: str = ""
    calls: tuple[AnswerCall, ...] = ()
    finish: Finish = Finish.STOP
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0


class GatewaySession(Protocol):
    """Session of one key: the conversations of one rollout."""

    async def answer(self, request: TurnRequest) -> TurnAnswer:
        """Return the model's next turn. Requests may run at the same time.

        If the task that awaits the turn is cancelled because the client disconnected, the turn is still sampled to its
        end and kept. A repetition of the request then gets this turn.

        Raises:
            RequestError: the request is refused.
        """
        ...

    def delivered(self, turn_id: str) -> None:
        """Record that the client has received the complete answer.

        If the client sends the request again, it then gets a new turn, unless `TurnRequest.is_retry` is true.
        """
        ...

    def count_tokens(self, request: TurnRequest) -> int:
        """Return the number of tokens of the request's context.

        Raises:
            RequestError: as for `answer`.
        """
        ...
