"""Analysis of a chat template: the text it writes around a model turn, found by rendering small test conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.probes import (
    OTHER_TOOLS,
    PLAIN_TURN,
    REPLY,
    TURN,
    USER,
    answers_of_tools,
    calling_turn,
    turn_of,
    with_text_arguments,
    without_contents,
)
from agentrl.chat.turn_end import EndOfTurn, end_of_calls, end_of_text
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DATE = "2026-01-01"
"""Date that templates read from the clock, unless `template_date` is set. A fixed date keeps runs reproducible."""
ALSO_END = {"<|eot_id|>": "<|eom_id|>"}
"""End-of-turn token -> a token that models sample in its place, but that templates never write (Llama 3.1)."""


class Template:
    """A chat template and its properties, found by rendering conversations of a few messages.

    Args:
        variables: further variables for the template. `template_date` (such as "2026-11-25") is the date that the
            template reads from the clock; all clock reads are midnight of that date.

    Raises:
        TemplateError: the tokenizer has no chat template. Methods, too, raise this error if the template fails, or if
            no messages can be appended after a model turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, JsonValue]) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(f"tokenizer '{tokenizer.name_or_path}' has no chat template: set model.chat_template")
        self._tokenizer = tokenizer
        self._variables = {**variables, "strftime_now": _clock(variables.get("template_date", DATE)).strftime}

    def render(self, messages: Sequence[Message], schemas: Sequence[ToolSchema], *, prompt: bool) -> str:
        """Render the full conversation as text; `prompt` adds the generation prompt at the end."""
        if self._needs_text_arguments and any("tool_calls" in message for message in messages):
            messages = [with_text_arguments(message) for message in messages]
        return self._render(messages, schemas, prompt=prompt)

    def _render(self, messages: Sequence[Message], schemas: Sequence[ToolSchema], *, prompt: bool) -> str:
        tools = [schema.for_template() for schema in schemas] or None
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt, **self._variables
            )
        except Exception as error:  # a template is user code and may raise anything
            roles = ", ".join(message["role"] for message in messages)
            reason = " ".join(str(error).split())
            raise TemplateError(f"the chat template refuses a conversation of [{roles}]: {reason}") from error
        return text

    @cached_property
    def _needs_text_arguments(self) -> bool:
        """Whether the template expects the arguments of a call as JSON text (DeepSeek-V3), not as an object."""
        turn = calling_turn("f", arguments={"x": TURN})
        as_text = with_text_arguments(turn)
        for message in (turn, as_text, as_text | {"content": None}):  # content None: for R1's distilled models
            try:
                if TURN in self._render([USER, message], OTHER_TOOLS, prompt=False):
                    return message is not turn
            except TemplateError:
                continue
        return False

    @cached_property
    def end_of_turn(self) -> EndOfTurn:
        """End of an assistant turn without calls, before a user message."""
        return end_of_text(self, [USER])

    @cached_property
    def end_of_calls(self) -> EndOfTurn:
        """End of an assistant turn with calls, before the tools' answers."""
        return end_of_calls(self)

    @cached_property
    def own_end(self) -> str | None:
        """The added token that the template writes after an assistant message at the end of a conversation, or None."""
        return self.first_added(self.render([USER, PLAIN_TURN], (), prompt=False).partition(TURN)[2].lstrip())

    def first_added(self, text: str) -> str | None:
        """Return the added token with which `text` begins; None if it begins with none."""
        found = self.any_added.match(text)
        return found[0] if found else None

    @cached_property
    def any_added(self) -> re.Pattern[str]:
        """Pattern of the text of any added token."""
        names = sorted(self.added_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or "(?!)")

    def end_before(self, messages: Sequence[Message]) -> EndOfTurn:
        """Return the end of the assistant turn before `messages`."""
        return self.end_of_calls if messages and messages[0]["role"] == "tool" else self.end_of_turn

    @cached_property
    def stop_tokens(self) -> dict[str, int]:
        """Text -> id of the tokens that end a model turn; first the one that ends a turn without calls."""
        first = self.own_end or self.end_of_turn.token
        found = [first, self.end_of_calls.token, ALSO_END.get(first, first)]
        if self.end_of_turn.opens:
            found.append(self.end_of_turn.token)
        return {text: self.added_tokens[text] for text in found if text in self.added_tokens}

    @cached_property
    def names(self) -> frozenset[str]:
        """All words in the template; they include the names of its variables."""
        return frozenset(re.findall(r"[^\W\d]\w*", str(self._tokenizer.chat_template)))

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Text -> id of the added tokens, which the tokenizer finds before all other tokens."""
        return dict(self._tokenizer.get_added_vocab())

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Text -> id of the added tokens that only the template may write: special tokens and tokens between turns."""
        written = []
        for probe in ([USER], answers_of_tools(1)):
            try:
                follows = self.follow(probe, OTHER_TOOLS)
                written.append(self.end_before(probe).token + follows)
            except TemplateError:  # the template does not support this role
                continue
        special = set(self._tokenizer.all_special_tokens)
        decoder = self._tokenizer.added_tokens_decoder
        special.update(token.content for token in decoder.values() if token.special)
        return {
            text: token_id
            for text, token_id in self.added_tokens.items()
            if text in special or any(text in literal for literal in written)
        }

    def follow(
        self,
        messages: Sequence[Message],
        schemas: Sequence[ToolSchema],
        history: Sequence[Message] = (USER, PLAIN_TURN),
    ) -> str:
        """Return the text after the end of a model turn: `messages` and the generation prompt.

        Tool messages are rendered after a turn that calls their tools: with one call per message, or with a single call
        if the template accepts only one. If the template has no calls, tool messages are rendered after a turn of text.

        Args:
            history: the conversation up to and including the model turn. Its contents do not matter, only its calls do.
        """
        earlier, last = [without_contents(message) for message in history[:-1]], history[-1]
        answers = list(takewhile(lambda message: message["role"] == "tool", messages))
        for turn in (turn_of(answers, last), turn_of(answers[:1], last)) if answers else ():
            try:
                return self._after(turn, self.end_of_calls, [*earlier, turn, *messages], schemas)
            except TemplateError:
                continue
        return self._after(PLAIN_TURN, self.end_before(messages), [*earlier, PLAIN_TURN, *messages], schemas)

    def _after(
        self, turn: Message, end: EndOfTurn, conversation: Sequence[Message], schemas: Sequence[ToolSchema]
    ) -> str:
        text = self.render(conversation, schemas, prompt=True)
        _, found, after = text.partition(TURN)
        if not found:
            raise TemplateError("the chat template loses the assistant's content")
        inside, ended, rest = after.partition(end.token)
        if not ended or ("tool_calls" not in turn and inside.strip()):
            raise TemplateError(
                f"the chat template does not end the assistant's turn with {end.token!r} here: {after[:30]!r} follows"
            )
        if TURN in rest:
            raise TemplateError("the chat template repeats the assistant's turn in the text after it")
        return rest

    def turn(self, message: Message, schemas: Sequence[ToolSchema]) -> tuple[str, str]:
        """Render an assistant message as the last message: (prompt, text of the turn with its end-of-turn token)."""
        head = self.render([USER], schemas, prompt=True)
        whole = self.render([USER, message], schemas, prompt=False)
        if not whole.startswith(head):
            raise TemplateError(
                "the chat template does not begin a saved assistant turn with the generation prompt: "
                f"{head[-40:]!r} against {whole[len(head) - 40 : len(head)]!r}"
            )
        text = whole[len(head) :]
        last = max((text.rfind(token) + len(token) for token in self.stop_tokens if token in text), default=None)
        if self.own_end is None and not text.rstrip().endswith(tuple(self.stop_tokens)):
            last = None  # GLM writes no end token after the last turn, so this token is message text
        end = self.end_of_calls if message.get("tool_calls") else self.end_of_turn
        return head, text + end.text if last is None else text[:last]

    def without_end(self, text: str) -> str:
        """Return the text of a turn without its end-of-turn token."""
        return next((text.removesuffix(token) for token in self.stop_tokens if text.endswith(token)), text)

    def stand_in(self, schemas: Sequence[ToolSchema]) -> Sequence[ToolSchema]:
        """Return the tools for rendering a continuation: two placeholder tools if it only matters that tools exist."""
        return OTHER_TOOLS if schemas and not self.tools_matter else schemas

    @cached_property
    def tools_matter(self) -> bool:
        """Whether the text after a turn depends on the tools themselves, not only on whether tools exist."""
        return self._differ(lambda probe: [self.follow(probe, OTHER_TOOLS[:count]) for count in (1, 2)])

    @cached_property
    def history_matters(self) -> bool:
        """Whether the text after a turn depends on earlier turns (DeepSeek-V3)."""
        answer = answers_of_tools(1)
        histories = [
            [*earlier, PLAIN_TURN] for earlier in ([USER], [USER, REPLY, USER], [USER, turn_of(answer), *answer])
        ]
        return self._differ(lambda probe: [self.follow(probe, OTHER_TOOLS, earlier) for earlier in histories])

    def _differ(self, variants: Callable[[Sequence[Message]], list[str]]) -> bool:
        """Whether `variants` returns texts that differ from each other, for at least one probe.

        The probes are one tool answer, two tool answers, and a user message.
        """
        for probe in (answers_of_tools(1), answers_of_tools(2), [USER]):
            try:
                found = variants(probe)
            except TemplateError:  # rendering the run's messages will raise this error again
                continue
            if len(set(found)) > 1:
                return True
        return False


def _clock(date: JsonValue) -> datetime:
    try:
        return datetime.strptime(str(date), "%Y-%m-%d")
    except ValueError:
        raise TemplateError(f"template_date: expected a date such as '{DATE}', found {date!r}") from None
