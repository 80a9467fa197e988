"""Image placeholders of a chat template, and the tokens that replace them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.base import ImageTokens
from agentrl.chat.template import Template
from agentrl.errors import TemplateError
from agentrl.types.messages import Message, image_part
from agentrl.utils.images import ImageError

_PROBE = Message(role="user", content=[image_part("x"), {"type": "text", "text": "Hi"}])


@dataclass(frozen=True, slots=True)
class Place:
    """Image placeholder of the template: text and id of one token.

    Like a control token, the placeholder is never encoded from message text. So each placeholder stands for an image.
    """

    text: str
    token_id: int
    images: ImageTokens

    def expand(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Replace each placeholder in `ids` by the tokens of the corresponding image.

        Raises:
            TemplateError: the numbers of placeholders and images differ, or the processor refuses an image.
        """
        if (found := ids.count(self.token_id)) != len(images):
            raise TemplateError(f"the chat template writes {found} placeholders for {len(images)} images")
        rest, expanded = iter(images), list[int]()
        for token_id in ids:
            expanded += self.tokens(next(rest)) if token_id == self.token_id else [token_id]
        return expanded

    def tokens(self, data: bytes) -> Sequence[int]:
        """Return the tokens of an image.

        Raises:
            TemplateError: the processor refuses the image.
        """
        try:
            return self.images.tokens(self.text, data)
        except ImageError as error:
            raise TemplateError(f"an image of {len(data)} bytes: {error}") from error

    def starts(self, ids: Sequence[int], images: Sequence[bytes]) -> list[int]:
        """Return the position of each image's first token in `ids`, which `expand` returned.

        Raises:
            ValueError: the tokens of an image are missing in `ids`.
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
    """Find the image placeholder of the template.

    Raises:
        TemplateError: the template writes no placeholder that the model's processor knows, or the placeholder is not a
            single token.
    """
    text = template.render([_PROBE], (), prompt=True)
    for place in images.places:
        if text.count(place) == 1 and place in template.added_tokens:
            return Place(place, template.added_tokens[place], images)
    raise TemplateError(f"the chat template writes no placeholder for an image: expected {' or '.join(images.places)}")
