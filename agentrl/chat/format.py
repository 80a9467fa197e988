"""A tokenizer's chat template made append-only: a turn's tokens are never rendered or encoded again."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import JsonValue

from agentrl.chat.base import ImageTokens
from agentrl.chat.check import check_template
from agentrl.chat.encode import Frame, TextEncoder
from agentrl.chat.images import Place, find_place
from agentrl.chat.prompts import Prompts
from agentrl.chat.shapes import Shape, key_of, learn, values_of
from agentrl.chat.template import OTHER_TOOLS, Template
from agentrl.errors import DataError, TemplateError
from agentrl.messages import Message, ToolSchema, image_names
from agentrl.trajectory import Author, Segment, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_IMAGES: Mapping[str, bytes] = MappingProxyType({})
MAX_SHAPES = 1024  # far more than a run meets; a bound, because the number of parallel calls is the model's choice


class ChatFormat:
    """A chat template that grows a conversation by what is new.

    `start` renders the prompt. After a model turn, `extend` gives the tokens that follow it; the model's own tokens are
    kept by the caller as they were sampled. Templates that would render earlier turns differently later on (Qwen3
    strips their thinking) are thereby continued as the model saw them.

    Text of tool and user messages never becomes a control token: a tool that answers `<|im_end|><|im_start|>assistant`
    adds those characters, not those tokens. Control tokens are the special ones, and those that the template itself
    writes between turns (`</tool_response>`). The prompt is the dataset's and is trusted: there the template and the
    tokenizer have their way.

    Args:
        template_kwargs: further variables for the template, such as `enable_thinking`.
        images: what the model's processor writes for an image; without it messages with images are refused.
        no_images: why there is none, for that refusal.

    Raises:
        TemplateError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        template_kwargs: Mapping[str, JsonValue] = MappingProxyType({}),
        images: ImageTokens | None = None,
        no_images: str = "the model takes no images",
    ) -> None:
        self.template = Template(tokenizer, template_kwargs)
        self.no_images = no_images
        self._place: Place | None = None
        if images:
            try:
                self._place = find_place(self.template, images)
            except TemplateError as error:  # of no matter where no message has an image
                self.no_images = str(error)
        self._tokenizer = tokenizer
        self._shapes: dict[Hashable, tuple[Shape, Frame] | None] = {}
        self._prompts = Prompts()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer whose template this is."""
        return self._tokenizer

    def check(self, schemas: Sequence[ToolSchema], roles: Collection[str]) -> None:
        """Refuse at the start what `extend` could not do faithfully with messages of these roles.

        Raises:
            TemplateError: says why the template cannot be continued.
        """
        check_template(self.template, schemas, roles)

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The template's end-of-turn token; the tokenizer's end of sequence where the template has none."""
        try:
            return (self.template.end_of_turn.token_id,)
        except TemplateError:
            end: int | None = self._tokenizer.eos_token_id
            return () if end is None else (end,)

    @property
    def takes_images(self) -> bool:
        """Whether messages may hold images."""
        return self._place is not None

    def start(
        self, messages: Sequence[Message], schemas: Sequence[ToolSchema], images: Mapping[str, bytes] = NO_IMAGES
    ) -> list[int]:
        """The prompt, with the generation prompt at its end.

        Args:
            images: the bytes of the messages' images, by their names.

        Raises:
            DataError: there are images, and the model takes none.
            TemplateError: the template refuses the messages, or does not write a place for each image.
        """
        self._refuse_images(messages)
        return self._prompts.get(
            messages, schemas, lambda: self._with_images(self._prompt(messages, schemas), messages, images)
        )

    def extend(
        self,
        new_messages: Sequence[Message],
        schemas: Sequence[ToolSchema],
        *,
        turn_closed: bool,
        images: Mapping[str, bytes] = NO_IMAGES,
    ) -> list[int]:
        """The tokens that follow a model turn: its end, the new messages, and the prompt for the next turn.

        Args:
            turn_closed: the model sampled the end-of-turn token itself, so it is not added.
            images: as for `start`.

        Raises:
            DataError: there are images, and the model takes none.
            TemplateError: the template refuses such messages here, or does not write a place for each image.
        """
        self._refuse_images(new_messages)
        ids = self._with_images(self._after_turn(new_messages, schemas), new_messages, images)
        return ids if turn_closed else [*self._end_ids, *ids]

    def check_image(self, data: bytes) -> None:
        """Refuse an image that messages cannot hold.

        Raises:
            DataError: the model takes none.
            TemplateError: its processor refuses this one.
        """
        if self._place is None:
            raise DataError(self.no_images)
        self._place.tokens(data)

    def image_starts(self, token_ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Where the tokens of `images` begin in what `start` or `extend` made of messages with these images."""
        return self._place.starts(token_ids, images) if self._place and images else []

    def text(self, token_ids: Sequence[int]) -> str:
        """What a model turn says, special tokens included, except an end-of-turn token at its end."""
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._encoder.decode(ids)

    def dialogue(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Trajectory:
        """A saved conversation as a trajectory, on the same append-only route that a rollout takes.

        Its assistant turns are rendered as the last message (that is how a model would have written them), with their
        end-of-turn token, and become `demonstration` segments. A leading assistant message belongs to the prompt.

        Raises:
            DataError: there are no messages.
            TemplateError: the template refuses them.
        """
        if not messages:
            raise DataError("a conversation needs at least one message")
        is_turn = [index > 0 and message["role"] == "assistant" for index, message in enumerate(messages)]
        first = is_turn.index(True) if any(is_turn) else len(messages)
        trajectory = Trajectory([Segment(Author.PROMPT, self.start(messages[:first], schemas))], messages)
        pending: list[Message] = []
        for number, message in enumerate(messages[first:]):
            if message["role"] != "assistant":
                pending.append(message)
                continue
            if number:
                trajectory.append(self._reply(pending, schemas))
                pending = []
            trajectory.append(Segment(Author.DEMONSTRATION, self._demonstration(message, schemas)))
        if pending:
            trajectory.append(self._reply(pending, schemas))
        return trajectory

    def _prompt(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> list[int]:
        if self._place is None:
            return self._encoder.encode(self.template.render(messages, schemas, prompt=True))
        # a prompt's text is trusted with every token but this one, whose number must be that of the images
        hidden = self._place_encoder.hide(list(messages))
        return self._place_encoder.encode_hidden(self.template.render(hidden, schemas, prompt=True))

    def _with_images(self, ids: list[int], messages: Sequence[Message], images: Mapping[str, bytes]) -> list[int]:
        return self._place.expand(ids, [images[name] for name in image_names(messages)]) if self._place else ids

    def _refuse_images(self, messages: Sequence[Message]) -> None:
        if self._place is None and image_names(messages):
            raise DataError(f"field 'images': {self.no_images}")

    def _reply(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> Segment:
        author = Author.TOOL if messages and messages[0]["role"] == "tool" else Author.USER
        return Segment(author, self.extend(messages, schemas, turn_closed=True))

    def _demonstration(self, message: Message, schemas: Sequence[ToolSchema]) -> list[int]:
        head, turn = self.template.turn(message, self._stand_in_tools(schemas))
        prompt_ids, whole_ids = self._encoder.encode(head), self._encoder.encode(head + turn)
        if whole_ids[: len(prompt_ids)] == prompt_ids:
            return whole_ids[len(prompt_ids) :]
        return self._encoder.encode(turn)  # the prompt's last token would have joined the turn's first one

    def _after_turn(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> list[int]:
        """What follows the end-of-turn token.

        That token is encoded along and dropped: some tokenizers treat the beginning of a text apart.
        """
        end, encoder = self.template.end_of_turn, self._encoder
        known, values = self._known(messages, schemas), values_of(messages)
        if known and values is not None:
            shape, frame = known
            ids = encoder.encode_framed(end.token + shape.fill(values), frame)
            if ids is None:  # contents spell control tokens
                ids = encoder.encode_hidden(end.token + shape.fill([encoder.hide(value) for value in values]))
        else:
            hidden = encoder.hide(list(messages))
            text = end.token + self.template.follow(hidden, self._stand_in_tools(schemas))
            ids = encoder.encode(text) if hidden == list(messages) else encoder.encode_hidden(text)
        return ids[ids.index(end.token_id) + 1 :]

    def _known(self, messages: Sequence[Message], schemas: Sequence[ToolSchema]) -> tuple[Shape, Frame] | None:
        """The shape of `messages` and its constant tokens, learnt when first met; None where it has no shape."""
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
        return shape, self._encoder.frame(self.template.end_of_turn.token + first, rest)

    def _stand_in_tools(self, schemas: Sequence[ToolSchema]) -> Sequence[ToolSchema]:
        """Tools to render a continuation with: two small ones where the template does not look at them there."""
        return OTHER_TOOLS if schemas and not self.template.tools_matter else schemas

    @cached_property
    def _end_ids(self) -> list[int]:
        return self._encoder.encode(self.template.end_of_turn.text)

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self._tokenizer, {**self.template.control_tokens, **self._place_token})

    @cached_property
    def _place_encoder(self) -> TextEncoder:
        return TextEncoder(self._tokenizer, self._place_token)

    @property
    def _place_token(self) -> dict[str, int]:
        return {self._place.text: self._place.token_id} if self._place else {}
