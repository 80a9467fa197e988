"""Where a chat template puts images, and the tokens that stand for them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.base import ImageTokens
from agentrl.chat.template import Template
from agentrl.errors import TemplateError
from agentrl.images import ImageError
from agentrl.messages import Message, image_part

_PROBE = Message(role="user", content=[image_part("x"), {"type": "text", "text": "Hi"}])


@dataclass(frozen=True, slots=True)
class Place:
    """What the template writes for an image, one token: text and id.

    Between turns it is a control token like others: text never becomes it, so each one in a context is an image.
    """

    text: str
    token_id: int
    images: ImageTokens

    def expand(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """`ids` with the tokens of an image for each place.

        Raises:
            TemplateError: there are more or fewer places than images, or the processor refuses one.
        """
        if (found := ids.count(self.token_id)) != len(images):
            raise TemplateError(f"the chat template writes {found} places for {len(images)} images")
        rest, expanded = iter(images), list[int]()
        for token_id in ids:
            expanded += self.tokens(next(rest)) if token_id == self.token_id else [token_id]
        return expanded

    def tokens(self, data: bytes) -> Sequence[int]:
        """What stands for an image.

        Raises:
            TemplateError: the processor refuses it.
        """
        try:
            return self.images.tokens(self.text, data)
        except ImageError as error:
            raise TemplateError(f"an image of {len(data)} bytes: {error}") from error

    def starts(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Where the tokens of each image begin in `ids`, which `expand` made.

        Raises:
            ValueError: they are not there.
        """
        starts, position = [], 0
        for data in images:
            tokens = list(self.tokens(data))
            position = ids.index(tokens[0], position)
            while list(ids[position : position + len(tokens)]) != tokens:
                position = ids.index(tokens[0], position + 1)
            starts.append(position)
            position += len(tokens)
        return starts


def find_place(template: Template, images: ImageTokens) -> Place:
    """What the template writes for an image.

    Raises:
        TemplateError: nothing that the model's processor knows, or more than one token.
    """
    text = template.render([_PROBE], (), prompt=True)
    for place in images.places:
        if text.count(place) == 1 and place in template.added_tokens:
            return Place(place, template.added_tokens[place], images)
    raise TemplateError(f"the chat template writes no place for an image: expected {' or '.join(images.places)}")
