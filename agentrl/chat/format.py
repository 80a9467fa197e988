"""Append-only chat template: a turn is never rendered or encoded a second time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ImageTokens
from agentrl.chat.continuation import Continuations
from agentrl.chat.dialogue import dialogue
from agentrl.chat.encode import TextEncoder
from agentrl.chat.history import opened_thoughts, with_thoughts
from agentrl.chat.images import Place, find_place
from agentrl.chat.prompt_cache import Prompts
from agentrl.chat.served import served_ids
from agentrl.chat.template import Template
from agentrl.chat.template_check import check_template
from agentrl.chat.variants import Variants, check_names
from agentrl.errors import DataError, TemplateError
from agentrl.types.messages import Message, ToolSchema, image_names
from agentrl.types.trajectory import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_IMAGES: Mapping[str, bytes] = MappingProxyType({})


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
        no_images: error text for messages with images if `images` is None.
        encoders: cache of encoders that several formats share, because each encoder has a copy of the tokenizer.

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
        encoders: Variants[TextEncoder] | None = None,
    ) -> None:
        self.template = Template(tokenizer, template_kwargs)
        self.no_images = no_images
        self._variables = template_kwargs
        self._encoders = encoders or Variants[TextEncoder]()
        self._variants = Variants[ChatFormat]()
        self._variant = partial(ChatFormat, tokenizer, images=images, no_images=no_images, encoders=self._encoders)
        self._place: Place | None = None
        if images:
            try:
                self._place = find_place(self.template, images)
            except TemplateError as error:  # the error is raised only if a message has an image
                self.no_images = str(error)
        self._tokenizer = tokenizer
        self._prompts = Prompts()

    def with_variables(self, variables: Mapping[str, JsonValue]) -> ChatFormat:
        """Return the format for a row with its own template variables.

        Raises:
            DataError: the template does not read a variable.
        """
        check_names(self.template, variables)
        every = {**self._variables, **variables}
        return self._variants.get(every, lambda: self._variant(template_kwargs=every)) if variables else self

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the template."""
        return self._tokenizer

    def check(self, schemas: Sequence[ToolSchema], roles: Collection[str]) -> None:
        """Check that `extend` can append messages of these roles after a model turn.

        Raises:
            TemplateError: the messages cannot be appended with this template; the error text contains the reason.
        """
        check_template(self.template, schemas, roles)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a model turn, or the tokenizer's end-of-sequence token if the template has none.

        The first of these tokens ends a turn without calls.
        """
        try:
            return tuple(self.template.stop_tokens.values())
        except TemplateError:
            end: int | None = self._tokenizer.eos_token_id
            return () if end is None else (end,)

    @cached_property
    def opened(self) -> str:
        """End of the generation prompt, from the mark that opens the model's thoughts; "" if it opens no thoughts.

        The sampled text begins inside these thoughts. So this text and the sampled text together are the complete turn.
        """
        try:
            return opened_thoughts(self.template)
        except TemplateError:  # rendering the run's messages will raise this error again
            return ""

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with their thoughts (`reasoning_content`) in the field that the template reads.

        If the template reads no such field, thoughts are put into the content, between `<think>` and `</think>`.
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
            TemplateError: the template refuses the messages, does not write one placeholder per image, or the processor
                refuses an image.
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

    def served(
        self,
        messages: Sequence[Message],
        schemas: Sequence[ToolSchema],
        images: Mapping[str, bytes] = NO_IMAGES,
        *,
        num_opening: int,
    ) -> list[int]:
        """Return the tokens of a conversation as a chat server renders it, including the generation prompt.

        Arguments and errors are the same as for `start`. Text of the messages after the first `num_opening` messages
        never becomes a control token.
        """
        self._refuse_images(messages)
        ids = served_ids(self.template, self._encoder, messages, schemas, num_opening, only=self._place_token)
        return self._with_images(ids, messages, images)

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

        Tool messages must have the name and the id of the call that they answer, if the template writes names or ids.

        Args:
            turn_closed: whether the model sampled the end-of-turn token (see `is_closed`); if not, this token is added.
            images: as for `start`.
            history: the conversation up to and including the model turn. Needed if `template.history_matters`, or if
                tool messages have no name or no id.

        Raises:
            DataError: the messages have images, but the model accepts none.
            TemplateError: the template refuses the messages after a model turn, does not write one placeholder per
                image, or the processor refuses an image.
        """
        self._refuse_images(new_messages)
        ids = self._continuations.ids(new_messages, schemas, history)
        ids = self._with_images(ids, new_messages, images)
        return ids if turn_closed else [*self._encoder.encode(self.template.end_before(new_messages).text), *ids]

    def is_closed(self, last_id: int | None, new_messages: Sequence[Message]) -> bool:
        """Whether `new_messages` can follow a turn with the last token `last_id` without a further end-of-turn token.

        This is true after any end-of-turn token. But if the template begins `new_messages` with a certain end-of-turn
        token (`<|observation|>` in GLM), it is true only after this token.
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
        """Return the position of each image's first token in `token_ids`, which `start` or `extend` returned."""
        return self._place.starts(token_ids, images) if self._place and images else []

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of a model turn, special tokens included, without the final end-of-turn token."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._encoder.decode(ids)

    def dialogue(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
        """Convert a saved conversation to a trajectory: see `chat.dialogue`."""
        return dialogue(self, messages, schemas)

    def demonstration(self, message: Message, schemas: Sequence[ToolSchema]) -> list[int]:
        """Return the tokens of a saved assistant message, with its end-of-turn token.

        Raises:
            TemplateError: the template refuses the message.
        """
        head, turn = self.template.turn(message, self.template.stand_in(schemas))
        prompt_ids, whole_ids = self._encoder.encode(head), self._encoder.encode(head + turn)
        if whole_ids[: len(prompt_ids)] == prompt_ids:
            return whole_ids[len(prompt_ids) :]
        return self._encoder.encode(turn)  # without the prompt, because a token could span prompt and turn

    def _prompt(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> list[int]:
        if self._place is None:
            return self._encoder.encode(self.template.render(messages, schemas, prompt=True))
        # prompt text must not become placeholders, because there must be as many placeholders as images
        hidden = self._place_encoder.hide(list(messages))
        return self._place_encoder.encode_hidden(self.template.render(hidden, schemas, prompt=True))

    def _with_images(self, ids: list[int], messages: Sequence[Message], images: Mapping[str, bytes]) -> list[int]:
        return self._place.expand(ids, [images[name] for name in image_names(messages)]) if self._place else ids

    def _refuse_images(self, messages: Sequence[Message]) -> None:
        if self._place is None and image_names(messages):
            raise DataError(f"field 'images': {self.no_images}")

    @cached_property
    def _continuations(self) -> Continuations:
        return Continuations(self.template, self._encoder)

    @cached_property
    def _encoder(self) -> TextEncoder:
        control = {**self.template.control_tokens, **self._place_token}
        return self._encoders.get(control, lambda: TextEncoder(self._tokenizer, control))

    @cached_property
    def _place_encoder(self) -> TextEncoder:
        return self._encoders.get(self._place_token, lambda: TextEncoder(self._tokenizer, self._place_token))

    @property
    def _place_token(self) -> dict[str, int]:
        return {self._place.text: self._place.token_id} if self._place else {}
