"""Analysis of a chat template: the text it writes around a model turn, found by rendering small test conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.errors import TemplateError
from agentrl.types.messages import FunctionCall, FunctionSchema, Message, MessageToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TURN = "zqTURNqz"  # placeholder for the model's text
CALL_ID = "zqCALL0qz"  # some templates require nine letters and digits
USER: Message = {"role": "user", "content": "Hi"}
PLAIN_TURN: Message = {"role": "assistant", "content": TURN}
OTHER_TOOLS = [ToolSchema(function=FunctionSchema(name=name, description=f"Does {name}.")) for name in ("f", "g")]


def calling_turn(name: str, content: str = "", arguments: JsonValue = None) -> Message:
    """An assistant message that calls a tool."""
    call = MessageToolCall(id=CALL_ID, type="function", function=FunctionCall(name=name, arguments=arguments or {}))
    return Message(role="assistant", content=content, tool_calls=[call])


@dataclass(frozen=True, slots=True)
class EndOfTurn:
    """End of an assistant turn in the template: whitespace and the end-of-turn token."""

    blanks: str
    token: str
    token_id: int

    @property
    def text(self) -> str:
        """Whitespace and token."""
        return self.blanks + self.token


class Template:
    """A chat template and its properties, found by rendering conversations of a few messages.

    Raises:
        TemplateError: (any method) the template fails, or cannot be continued after a model turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, JsonValue]) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(f"tokenizer '{tokenizer.name_or_path}' has no chat template: set model.chat_template")
        self._tokenizer = tokenizer
        self._variables = dict(variables)

    def render(self, messages: Sequence[Message], schemas: Sequence[ToolSchema], *, prompt: bool) -> str:
        """Render the full conversation as text; `prompt` adds the generation prompt at the end."""
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
    def end_of_turn(self) -> EndOfTurn:
        """End of an assistant turn."""
        try:
            text = self.render([USER, PLAIN_TURN, USER], (), prompt=True)
        except TemplateError:  # some templates support only one user and one assistant message
            text = self.render([USER, PLAIN_TURN], (), prompt=False)
        _, found, after = text.partition(TURN)
        if not found:
            raise TemplateError("the chat template loses the assistant's content")
        token = after.lstrip()
        names = sorted(self.added_tokens, key=len, reverse=True)
        name = next((name for name in names if token.startswith(name)), None)
        if name is None:
            raise TemplateError(
                f"the chat template has no end-of-turn token after the assistant's content: {after[:30]!r} follows"
            )
        return EndOfTurn(after[: len(after) - len(token)], name, self.added_tokens[name])

    @cached_property
    def names(self) -> frozenset[str]:
        """Names in the template: of variables, and other words."""
        return frozenset(re.findall(r"[^\W\d]\w*", str(self._tokenizer.chat_template)))

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Text -> id of the added tokens, which the tokenizer finds before all other tokens."""
        return dict(self._tokenizer.get_added_vocab())

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Text -> id of the added tokens that only the template may write: special tokens and tokens between turns."""
        written = []
        for role in ("tool", "user"):
            try:
                follows = self.follow([{"role": role, "content": "", "tool_call_id": CALL_ID}], OTHER_TOOLS)
                written.append(self.end_of_turn.token + follows)
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
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], earlier: Sequence[Message] = (USER,)
    ) -> str:
        """Return the text after the end of a model turn: `messages` and the generation prompt."""
        if not messages or messages[0]["role"] != "tool":
            return self._after(PLAIN_TURN, messages, schemas, earlier)
        try:
            return self._after(calling_turn(TURN, TURN), messages, schemas, earlier)
        except TemplateError:  # the template does not support these tool calls: use a plain text turn
            return self._after(PLAIN_TURN, messages, schemas, earlier)

    def _after(
        self, turn: Message, messages: Sequence[Message], schemas: Sequence[ToolSchema], earlier: Sequence[Message]
    ) -> str:
        text = self.render([*earlier, turn, *messages], schemas, prompt=True)
        _, found, after = text.partition(TURN)
        if not found:
            raise TemplateError("the chat template loses the assistant's content")
        inside, ended, rest = after.partition(self.end_of_turn.token)
        if not ended or ("tool_calls" not in turn and inside.strip()):
            raise TemplateError(
                f"the chat template does not end the assistant's turn with {self.end_of_turn.token!r} "
                f"here: {after[:30]!r} follows"
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
        text, ended, _ = whole[len(head) :].rpartition(self.end_of_turn.token)
        return (head, text + ended) if ended else (head, whole[len(head) :] + self.end_of_turn.text)

    @cached_property
    def tools_matter(self) -> bool:
        """Whether the text after a turn depends on the tools themselves, not only on whether tools exist."""
        for role in ("tool", "user"):
            probe: list[Message] = [{"role": role, "content": "x", "name": "f", "tool_call_id": CALL_ID}]
            try:
                if self.follow(probe, OTHER_TOOLS[:1]) != self.follow(probe, OTHER_TOOLS):
                    return True
            except TemplateError:  # the run's messages will raise the same error
                continue
        return False
