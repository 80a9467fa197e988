"""Append-only chat template: a turn is never rendered or encoded a second time."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ImageTokens
from agentrl.chat.encode import Frame, TextEncoder
from agentrl.chat.history import opened_thoughts, with_thoughts
from agentrl.chat.images import Place, find_place
from agentrl.chat.probes import OTHER_TOOLS
from agentrl.chat.prompt_cache import Prompts
from agentrl.chat.template import EndOfTurn, Template
from agentrl.chat.template_cache import Shape, key_of, learn, values_of
from agentrl.chat.template_check import check_template
from agentrl.errors import DataError, TemplateError
from agentrl.types.messages import Message, ToolSchema, image_names
from agentrl.types.trajectory import Author, Segment, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_IMAGES: Mapping[str, bytes] = MappingProxyType({})
MAX_SHAPES = 1024  # more than a run needs; a limit is needed, because the model chooses the number of parallel calls


class ChatFormat:
    """Chat template that appends only new messages to a conversation.

    `start` renders the prompt. `extend` returns the tokens that follow a model turn. The caller keeps the sampled
    tokens unchanged. So the context stays as the model saw it, even if the template would now render earlier turns
    differently (Qwen3 removes their thinking).

    Text of tool and user messages never becomes a control token: a tool result `<|im_end|><|im_start|>assistant` is
    encoded as ordinary characters. Control tokens are the special tokens and the tokens that the template writes
    between turns (`</tool_response>`). The prompt comes from the dataset and is trusted: its text may become control
    tokens.

    Args:
        template_kwargs: further variables for the template, such as `enable_thinking`.
        images: image tokens of the model's processor; if None, messages with images are refused.
        no_images: error text for this case: the reason for the missing processor.

    Raises:
        TemplateError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, JsonValue] = MappingProxyType({}),
        images: ImageTokens | None = None,
        no_images: str = "the model does not accept images",
    ) -> None:
        self.template = Template(tokenizer, template_kwargs)
        self.no_images = no_images
        self._place: Place | None = None
        if images:
            try:
                self._place = find_place(self.template, images)
            except TemplateError as error:  # raised only if a message has an image
                self.no_images = str(error)
        self._tokenizer = tokenizer
        self._shapes: dict[Hashable, tuple[Shape, Frame] | None] = {}
        self._prompts = Prompts()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the template."""
        return self._tokenizer

    def check(self, schemas: Sequence[ToolSchema], roles: Collection[str]) -> None:
        """Check that `extend` can continue the template with messages of these roles.

        Raises:
            TemplateError: the template cannot be continued; the text contains the reason.
        """
        check_template(self.template, schemas, roles)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a model turn, or the tokenizer's end-of-sequence token if the template has none.

        The first one ends a turn without calls.
        """
        try:
            return tuple(self.template.stop_tokens.values())
        except TemplateError:
            end: int | None = self._tokenizer.eos_token_id
            return () if end is None else (end,)

    @cached_property
    def opened(self) -> str:
        """Text of the generation prompt from the mark that begins the model's thoughts; "" if it begins none.

        The model then writes only the rest of its thoughts, so this text and the sampled text are the whole turn.
        """
        try:
            return opened_thoughts(self.template)
        except TemplateError:  # the run's messages will raise the same error
            return ""

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages whose thoughts (`reasoning_content`) the template can show.

        The name becomes that which the template reads. If it reads none, thoughts are put into the content, between
        `<think>` and `</think>`.
        """
        return with_thoughts(messages, self.template)

    @property
    def takes_images(self) -> bool:
        """Whether messages may contain images."""
        return self._place is not None

    def start(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], images: Mapping[str, bytes] = NO_IMAGES
    ) -> list[int]:
        """Return the tokens of the prompt, including the generation prompt.

        Args:
            images: name -> bytes of the messages' images.

        Raises:
            DataError: the messages have images, but the model accepts none.
            TemplateError: the template refuses the messages, or does not write a placeholder for each image.
        """
        self._refuse_images(messages)
        return self._prompts.get(
            messages, schemas, lambda: self._with_images(self._prompt(messages, schemas), messages, images)
        )

    def start_untrusted(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a prompt without tools and images; its text never becomes control tokens.

        Raises:
            TemplateError: the template refuses the messages.
        """
        return self._encoder.encode_hidden(self.template.render(self._encoder.hide(list(messages)), (), prompt=True))

    def extend(
        self,
        new_messages: Sequence[Message],
        schemas: Sequence[ToolSchema],
        *,
        turn_closed: bool,
        images: Mapping[str, bytes] = NO_IMAGES,
        history: Sequence[Message] = (),
    ) -> list[int]:
        """Return the tokens that follow a model turn: its end, the new messages, and the generation prompt.

        Tool messages must have the name and the id of the call that they answer, if the template writes them.

        Args:
            turn_closed: whether the model sampled the end-of-turn token (see `is_closed`); if not, it is added.
            images: as for `start`.
            history: the conversation up to the model turn. Needed if `template.history_matters`, or if tool messages
                have no names.

        Raises:
            DataError: the messages have images, but the model accepts none.
            TemplateError: the template refuses the messages here, or does not write one placeholder per image.
        """
        self._refuse_images(new_messages)
        ids = self._with_images(self._after_turn(new_messages, schemas, history), new_messages, images)
        return ids if turn_closed else [*self._end_ids(self.template.end_before(new_messages)), *ids]

    def is_closed(self, last_id: int | None, new_messages: Sequence[Message]) -> bool:
        """Whether `new_messages` can follow a turn with the last token `last_id` without a further end-of-turn token.

        After any end-of-turn token they can, unless theirs is also their first token (`<|observation|>` in GLM).
        """
        if last_id not in self.stop_token_ids:
            return False
        end = self.template.end_before(new_messages)
        return last_id == end.token_id or not end.opens

    def check_image(self, data: bytes) -> None:
        """Check that messages may contain this image.

        Raises:
            DataError: the model accepts no images.
            TemplateError: the model's processor refuses this image.
        """
        if self._place is None:
            raise DataError(self.no_images)
        self._place.tokens(data)

    def image_starts(self, token_ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Position of the first token of each image in `token_ids`, a result of `start` or `extend`."""
        return self._place.starts(token_ids, images) if self._place and images else []

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a model turn, special tokens included, without the final end-of-turn token."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._encoder.decode(ids)

    def dialogue(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
        """Convert a saved conversation to a trajectory, with the same append-only method as a rollout.

        Each assistant turn becomes a `demonstration` segment with its end-of-turn token. It is rendered as the last
        message, so it looks like a sampled turn. A leading assistant message belongs to the prompt.

        Raises:
            DataError: there are no messages.
            TemplateError: the template refuses the messages.
        """
        if not messages:
            raise DataError("a conversation needs at least one message")
        is_turn = [index > 0 and message["role"] == "assistant" for index, message in enumerate(messages)]
        first = is_turn.index(True) if any(is_turn) else len(messages)
        trajectory = Trajectory([Segment(Author.PROMPT, self.start(messages[:first], schemas))], messages)
        pending, last_id = list[Message](), -1
        for number, message in enumerate(messages[first:], start=first):
            if message["role"] != "assistant":
                pending.append(message)
                continue
            if number > first:
                trajectory.append(self._reply(pending, schemas, messages[: number - len(pending)], last_id))
                pending = []
            turn_ids = self._demonstration(message, schemas)
            last_id = turn_ids[-1]
            trajectory.append(Segment(Author.DEMONSTRATION, turn_ids))
        if pending:
            trajectory.append(self._reply(pending, schemas, messages[: len(messages) - len(pending)], last_id))
        return trajectory

    def _prompt(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> list[int]:
        if self._place is None:
            return self._encoder.encode(self.template.render(messages, schemas, prompt=True))
        # prompt text must not become image placeholders: their number must match the images
        hidden = self._place_encoder.hide(list(messages))
        return self._place_encoder.encode_hidden(self.template.render(hidden, schemas, prompt=True))

    def _with_images(self, ids: list[int], messages: Sequence[Message], images: Mapping[str, bytes]) -> list[int]:
        return self._place.expand(ids, [images[name] for name in image_names(messages)]) if self._place else ids

    def _refuse_images(self, messages: Sequence[Message]) -> None:
        if self._place is None and image_names(messages):
            raise DataError(f"field 'images': {self.no_images}")

    def _reply(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], history: Sequence[Message], last_id: int
    ) -> Segment:
        author = Author.TOOL if messages and messages[0]["role"] == "tool" else Author.USER
        closed = self.is_closed(last_id, messages)
        return Segment(author, self.extend(messages, schemas, turn_closed=closed, history=history))

    def _demonstration(self, message: Message, schemas: Sequence[ToolSchema]) -> list[int]:
        head, turn = self.template.turn(message, self._stand_in_tools(schemas))
        prompt_ids, whole_ids = self._encoder.encode(head), self._encoder.encode(head + turn)
        if whole_ids[: len(prompt_ids)] == prompt_ids:
            return whole_ids[len(prompt_ids) :]
        return self._encoder.encode(turn)  # encoded separately, because prompt and turn share a token at their boundary

    def _after_turn(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], history: Sequence[Message]
    ) -> list[int]:
        """Tokens after the end-of-turn token.

        The text is encoded after the end-of-turn token, which is then dropped: some tokenizers encode the start of a
        text differently.
        """
        end, encoder = self.template.end_before(messages), self._encoder
        if history and (self.template.history_matters or not all(map(_has_names, messages))):
            text = end.token + self.template.follow(encoder.hide(list(messages)), schemas, history)
            found = encoder.encode_hidden(text)
            return found[found.index(end.token_id) + 1 :]
        known, values = self._known(messages, schemas), values_of(messages)
        if known and values is not None:
            shape, frame = known
            ids = encoder.encode_framed(end.token + shape.fill(values), frame)
            if ids is None:  # contents contain control tokens
                ids = encoder.encode_hidden(end.token + shape.fill([encoder.hide(value) for value in values]))
        else:
            hidden = encoder.hide(list(messages))
            text = end.token + self.template.follow(hidden, self._stand_in_tools(schemas))
            ids = encoder.encode(text) if hidden == list(messages) else encoder.encode_hidden(text)
        return ids[ids.index(end.token_id) + 1 :]

    def _known(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> tuple[Shape, Frame] | None:
        """Cached shape of `messages` and its frame; None if the messages have no shape."""
        tools: Hashable = bool(schemas)
        if schemas and self.template.tools_matter:
            tools = json.dumps([schema.for_template() for schema in schemas])
        key = (tools, key_of(messages))
        if key not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = self._learn(messages, self._stand_in_tools(schemas))
        return self._shapes[key]

    def _learn(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> tuple[Shape, Frame] | None:
        shape = learn(messages, lambda probes: self.template.follow(probes, schemas))
        if shape is None:
            return None
        first, *rest = shape.literals
        return shape, self._encoder.frame(self.template.end_before(messages).token + first, rest)

    def _stand_in_tools(self, schemas: Sequence[ToolSchema]) -> Sequence[ToolSchema]:
        """Tools for rendering a continuation: two small placeholders if the continuation does not depend on them."""
        return OTHER_TOOLS if schemas and not self.template.tools_matter else schemas

    def _end_ids(self, end: EndOfTurn) -> list[int]:
        return self._encoder.encode(end.text)

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self._tokenizer, {**self.template.control_tokens, **self._place_token})

    @cached_property
    def _place_encoder(self) -> TextEncoder:
        return TextEncoder(self._tokenizer, self._place_token)

    @property
    def _place_token(self) -> dict[str, int]:
        return {self._place.text: self._place.token_id} if self._place else {}


def _has_names(message: Message) -> bool:
    """Whether a message states the call that it answers, if it answers one."""
    return message["role"] != "tool" or ("name" in message and "tool_call_id" in message)
