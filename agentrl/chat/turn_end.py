"""End of a model turn in a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.chat.probes import OTHER_TOOLS, PLAIN_TURN, RESULT, TURN, USER, answers_of_tools, turn_of
from agentrl.errors import TemplateError
from agentrl.types.messages import Message

if TYPE_CHECKING:
    from agentrl.chat.template import Template


@dataclass(frozen=True, slots=True)
class EndOfTurn:
    """End of an assistant turn in the template: whitespace and the end-of-turn token.

    Attributes:
        opens: whether the token (such as `<|observation|>` in GLM) also begins the messages after the turn. Then these
            messages need this token, even if the model has ended its turn with another token.
    """

    blanks: str
    token: str
    token_id: int
    opens: bool = False

    @property
    def text(self) -> str:
        """Whitespace and token."""
        return self.blanks + self.token


def end_of_text(template: Template, new: Sequence[Message]) -> EndOfTurn:
    """Return the end of an assistant turn without calls, before the messages `new`.

    Raises:
        TemplateError: the template writes no added token there.
    """
    try:
        text = template.render([USER, PLAIN_TURN, *new], (), prompt=True)
    except TemplateError:  # some templates support only one user and one assistant message
        text = template.render([USER, PLAIN_TURN], (), prompt=False)
    _, found, after = text.partition(TURN)
    if not found:
        raise TemplateError("the chat template loses the assistant's content")
    token = after.lstrip()
    name = template.first_added(token)
    if name is None:
        raise TemplateError(
            f"the chat template has no end-of-turn token after the assistant's content: {after[:30]!r} follows"
        )
    blanks = after[: len(after) - len(token)]
    return EndOfTurn(blanks, name, template.added_tokens[name], opens=template.own_end is None)


def end_of_calls(template: Template) -> EndOfTurn:
    """Return the end of an assistant turn with calls, before the answers of the tools.

    If the template ends turns with and without calls in the same way, return the end of a turn without calls. Otherwise
    return the first added token that follows the calls and is not part of them: `<|call|>` in gpt-oss,
    `<|observation|>` in GLM.

    Raises:
        TemplateError: the template writes no added token there.
    """
    answers = answers_of_tools(2)
    after = _between(template, [USER, turn_of(answers[:1]), answers[0]], TURN, RESULT)
    if after is None:  # the template has no calls: the answers follow a turn of text
        return end_of_text(template, answers[:1])
    if template.end_of_turn.token in after:
        return template.end_of_turn
    two = turn_of(answers)
    two["tool_calls"][0]["function"]["arguments"] = {"x": RESULT}
    inside = set(template.any_added.findall(_between(template, [USER, two], RESULT, TURN) or ""))
    found = next((text for text in template.any_added.findall(after) if text not in inside), None)
    if found is None:
        raise TemplateError(f"the chat template has no token between tool calls and their answers: {after!r}")
    alone = template.render([USER, turn_of(answers[:1])], OTHER_TOOLS, prompt=False).partition(TURN)[2]
    opens = found not in alone or found in (
        _between(template, [USER, turn_of(answers), *answers], RESULT, RESULT) or ""
    )
    return EndOfTurn("", found, template.added_tokens[found], opens)


def _between(template: Template, conversation: Sequence[Message], first: str, second: str) -> str | None:
    """Return the text between two placeholders; None if the template refuses the conversation or loses one of them."""
    try:
        text = template.render(conversation, OTHER_TOOLS, prompt=conversation[-1]["role"] != "assistant")
    except TemplateError:
        return None
    between, found, _ = text.partition(first)[2].partition(second)
    return between if found else None
