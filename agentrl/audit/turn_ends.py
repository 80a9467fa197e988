"""Find where a model turn ends in the text of a chat template, by rendering small conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from agentrl.audit.reading.run_info import Json

Conversation = Sequence[Mapping[str, Json]]
Render = Callable[[Conversation, bool], str]
"""Function that renders a conversation, with or without a generation prompt; it may raise `TemplateRefusesError`."""

MARK = "zqw{:05d}wqz"  # placeholder for a model turn; templates do not change letters and digits
MARKED = re.compile(r"zqw(\d{5})wqz")
ALSO_ENDS = {"<|eot_id|>": "<|eom_id|>"}
"""End token -> another end token that models sample but their templates never write."""
_USER, _TURN = {"role": "user", "content": "a"}, {"role": "assistant", "content": MARK.format(0)}
_ANSWERS = [{"role": "tool", "name": "f", "tool_call_id": f"c0000000{n}", "content": "zqvqz"} for n in range(2)]


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """Texts of the tokens that end a model turn.

    Attributes:
        text: the end of a turn before a user message.
        calls: the end of a turn with calls, before the answers.
        sampled: end tokens that a model may sample; the first one ends a turn without calls.
        own: whether a conversation's last turn has an end token; if not, the start of the next message ends a turn.
        answers_begin: whether the token `calls` is also the start of the answers.
    """

    text: str | None
    calls: str | None
    sampled: tuple[str, ...]
    own: bool
    answers_begin: bool

    def opens(self, token: str) -> bool:
        """Whether the token is also the start of the next message. No other end token can replace such a token."""
        return not self.own or (self.answers_begin and token == self.calls)


@dataclass(frozen=True, slots=True)
class CallForm:
    """Form in which a model turn with calls is passed to the template; a template may refuse some forms.

    Attributes:
        max_calls: maximum number of calls in the turn; 0: the turn is rendered as text without calls.
        as_text: whether arguments are JSON text, not objects.
    """

    max_calls: int
    as_text: bool = False


FORMS = (CallForm(1000), CallForm(1), CallForm(1000, as_text=True), CallForm(1, as_text=True), CallForm(0))


def calling(answers: Conversation, mark: str, form: CallForm, first: str = "x") -> Mapping[str, Json]:
    """Return a model turn whose calls are answered by the tool messages `answers`.

    The turn has at most `form.max_calls` calls. The last call has the argument `mark`, the others `first`.
    """
    calls: list[Json] = []
    for answer in answers[: form.max_calls]:
        arguments: dict[str, Json] = {"x": first}
        function = {"name": answer.get("name", "f"), "arguments": arguments}
        calls.append({"id": answer.get("tool_call_id", "c00000000"), "type": "function", "function": function})
        last = arguments
    last["x"] = mark
    if form.as_text:
        for call in calls:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return {"role": "assistant", "content": "", "tool_calls": calls}


def marked(messages: Conversation, num_opening: int, form: CallForm) -> list[Mapping[str, Json]]:
    """Replace the model's turns by marks, numbered from 0."""
    found, number = list(messages[:num_opening]), 0
    for index, message in enumerate(messages[num_opening:], start=num_opening):
        if message["role"] != "assistant":
            found.append(message)
            continue
        answers = list(takewhile(lambda each: each["role"] == "tool", messages[index + 1 :]))
        mark = MARK.format(number)
        calls = answers and form.max_calls
        found.append(calling(answers, mark, form) if calls else {"role": "assistant", "content": mark})
        number += 1
    return found


def turn_ends(render: Render, added: re.Pattern[str], form: CallForm, refused: type[Exception]) -> TurnEnds:
    """Find the ends of turns.

    Args:
        added: matches the text of any added token.
        refused: the exception that `render` raises if the template refuses a conversation.
    """

    def after(conversation: Conversation, *, prompt: bool) -> str:
        try:
            parts = MARKED.split(render(conversation, prompt))
        except refused:
            return ""
        return parts[-1] if len(parts) > 1 else ""

    alone = _first(added, after([_USER, _TURN], prompt=False))
    text = _first(added, after([_USER, _TURN, _USER], prompt=False)) or alone
    calls, begins = text, False
    if form.max_calls:
        one, two = (calling(_ANSWERS[:count], MARK.format(0), form, "zqvqz") for count in (1, 2))
        answered = after([_USER, one, _ANSWERS[0]], prompt=True).partition("zqvqz")[0]
        if text is None or text not in answered:
            inside = _inside(render, two, refused)
            calls = next((token for token in added.findall(answered) if token not in inside), None)
            between = after([_USER, two, *_ANSWERS], prompt=True).split("zqvqz")[1:2]
            shown = after([_USER, one], prompt=False)
            begins = calls is not None and (calls not in shown or calls in "".join(between))
    sampled = [alone or text, calls, ALSO_ENDS.get(alone or ""), text if not alone else None]
    return TurnEnds(text, calls, tuple(dict.fromkeys(filter(None, sampled))), alone is not None, begins)


def _first(added: re.Pattern[str], text: str) -> str | None:
    found = added.match(text.lstrip())
    return found[0] if found else None


def _inside(render: Render, two: Mapping[str, Json], refused: type[Exception]) -> str:
    """Text between the arguments of two calls; "" if the template writes only one call."""
    try:
        parts = MARKED.split(render([_USER, two], False).partition("zqvqz")[2])
    except refused:
        return ""
    return parts[0] if len(parts) > 1 else ""
