"""Checks whether a model's tokenizer and chat template support runs with tools, and lists reasons for refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, cast

from agentrl.chat.base import parser_for
from agentrl.chat.example import example_conversation, example_turn
from agentrl.chat.example_rollout import example_rollout
from agentrl.chat.history import field_of, with_thoughts
from agentrl.chat.parsers.choice import find_format
from agentrl.chat.parsers.fit import Arguments, check_parser, make_parser, written_turn
from agentrl.chat.parsers.names import AUTO
from agentrl.chat.parsers.thinking import THINK_END
from agentrl.chat.probes import TURN, USER, answers_of_tools, turn_of
from agentrl.chat.served import check_history
from agentrl.errors import AgentRLError, TemplateError
from agentrl.types.messages import Message, ToolSchema
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat

_THOUGHT = "zqTHOUGHTqz"


class Thoughts(StrEnum):
    """Which thoughts of earlier turns a chat template shows."""

    KEPT = "kept"
    UNTIL_USER = "kept until the next user message"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A feature that a run would refuse, and the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Properties of a chat template.

    Attributes:
        tool_format: the format of tool calls; None if no format fits the template.
        parallel_calls: whether one turn may have several calls.
        thoughts: the thoughts of earlier turns that the template shows; None if it refuses earlier turns.
        stop_tokens: the tokens that end a model turn.
        conversation: the longest example conversation that the template accepts; None if it accepts no example.
        unsaved: why saved conversations cannot be trained on (SFT, DPO); "" if they can.
        unstripped: why `rollout.multi_turn.thinking=strip` is refused; "" if it is accepted.
    """

    tool_format: str | None
    parallel_calls: bool
    thoughts: Thoughts | None
    stop_tokens: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    conversation: Trajectory | None
    unsaved: str
    unstripped: str


def check_model(
    chat: ChatFormat, schemas: Sequence[ToolSchema], wanted_format: str, start: Sequence[Message]
) -> ModelCheck:
    """Check a model's chat template with tools. A run does the same checks before it starts.

    Args:
        wanted_format: name of a tool parser, or `auto`.
        start: first messages of the example conversation.
    """
    refusals: list[Refusal] = []
    tool_format = _tool_format(chat, schemas, wanted_format, refusals)
    tools, users = (_accepts(chat, schemas, role, refusals) for role in ("tool", "user"))
    parallel = tool_format is not None and tools and _reads_two_calls(chat, schemas, tool_format)
    num_calls = 1 + parallel if tools else 0
    shown, unsaved = _conversation(chat, schemas if tools else (), start, num_calls, users)
    if shown is None:
        refusals.append(Refusal("the conversation", unsaved))
    return ModelCheck(
        tool_format=tool_format,
        parallel_calls=parallel,
        thoughts=thoughts_of(chat),
        stop_tokens=tuple(map(chat.tokenizer.convert_ids_to_tokens, chat.stop_token_ids)),
        refusals=tuple(refusals),
        conversation=shown,
        unsaved=unsaved,
        unstripped=_reason(lambda: check_history(chat.template, schemas if tools else ())),
    )


def thoughts_of(chat: ChatFormat) -> Thoughts | None:
    """Return which thoughts of earlier turns the template shows; None if it refuses earlier turns."""
    calling = turn_of(answers := answers_of_tools(1))
    plain = Message(role="assistant", content=TURN, reasoning_content=_THOUGHT)
    if _shows(chat, [USER, plain, USER]):
        return Thoughts.KEPT
    within = _shows(chat, [USER, Message(**{**calling, "reasoning_content": _THOUGHT}), *answers])
    if within:
        return Thoughts.UNTIL_USER
    return None if _shows(chat, [USER, Message(role="assistant", content=_THOUGHT), USER]) is None else Thoughts.DROPPED


def _shows(chat: ChatFormat, messages: Sequence[Message]) -> bool | None:
    """Whether the template shows the thoughts; None if it refuses the messages."""
    try:
        return _THOUGHT in chat.template.render(with_thoughts(messages, chat.template), (), prompt=True)
    except TemplateError:
        return None


def _tool_format(chat: ChatFormat, schemas: Sequence[ToolSchema], wanted: str, refusals: list[Refusal]) -> str | None:
    try:
        if wanted != AUTO:
            check_parser(wanted, chat, schemas)
            return wanted
        found = find_format(chat)
    except AgentRLError as error:
        refusals.append(Refusal("tool calls", str(error)))
        return None
    if found.problem:
        refusals.append(Refusal("tool calls", found.problem))
        return None
    return found.name


def _accepts(chat: ChatFormat, schemas: Sequence[ToolSchema], role: str, refusals: list[Refusal]) -> bool:
    if why := _reason(lambda: chat.check(schemas, [role])):
        refusals.append(Refusal({"tool": "tool results", "user": "further user messages"}[role], why))
    return not why


def _reason(check: Callable[[], None]) -> str:
    """Return why `check` refuses the template; "" if it does not."""
    try:
        check()
    except TemplateError as error:
        return str(error)
    return ""


def _reads_two_calls(chat: ChatFormat, schemas: Sequence[ToolSchema], tool_format: str) -> bool:
    """Whether the template writes two calls in a turn, and the parser reads them."""
    turn = example_turn(schemas, 2)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]]
    written = written_turn(chat, schemas, [(name, cast(Arguments, arguments)) for name, arguments in calls])
    if written is None:
        return False
    parsed = parser_for(make_parser(tool_format, chat), schemas).parse(written)
    return [call.name for call in parsed.calls if call.error is None] == [name for name, _ in calls]


def _conversation(
    chat: ChatFormat, schemas: Sequence[ToolSchema], start: Sequence[Message], num_calls: int, user_turn: bool
) -> tuple[Trajectory | None, str]:
    """Return the longest accepted example, and why no example can be a saved conversation; "" if an example can."""
    reason = ""
    examples = [(num_calls, user_turn), (num_calls, False), (0, False)]
    for (calls, user), thoughts in product(examples, (True, False) if _has_thoughts(chat) else (False,)):
        messages = example_conversation(start, schemas, calls, user_turn=user, thoughts=thoughts)
        try:
            return chat.dialogue(chat.history(messages), schemas), ""
        except AgentRLError as error:
            reason = reason or str(error)
    for calls, user in examples:
        try:
            messages = example_conversation(start, schemas, calls, user_turn=user, thoughts=False)
            return example_rollout(chat, messages, schemas), reason
        except AgentRLError:
            continue
    return None, reason


def _has_thoughts(chat: ChatFormat) -> bool:
    """Whether the template reads thoughts, in a field or in the text of a message."""
    return field_of(chat.template) is not None or THINK_END in str(chat.tokenizer.chat_template)
