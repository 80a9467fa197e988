"""Images in a chat: their placeholder tokens, the positions, and text that must not become a placeholder."""

from __future__ import annotations

import re

import pytest
from chat_families import family_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from vision_models import vision_tokenizer

from agentrl.chat.format import ChatFormat
from agentrl.errors import DataError, TemplateError
from agentrl.types.messages import Message, image_part
from agentrl.utils.images import ImageError

PLACE = 261
IMAGES = {"one": b"\x01", "three": b"\x03"}


class Counting:
    """An image processor that gives as many tokens as the first byte of the image."""

    places = ("<|image_pad|>",)

    def tokens(self, place: str, data: bytes) -> list[int]:
        return [PLACE] * data[0]


class Refusing(Counting):
    def tokens(self, place: str, data: bytes) -> list[int]:
        raise ImageError("it is too thin")


CHAT = ChatFormat(vision_tokenizer(), images=Counting())


def test_image_refused_by_the_processor_is_an_error():
    chat = ChatFormat(vision_tokenizer(), images=Refusing())
    with pytest.raises(TemplateError, match="an image of 1 bytes: it is too thin"):
        chat.start([message("one")], (), IMAGES)
    with pytest.raises(TemplateError, match="too thin"):
        chat.check_image(b"\x01")


def message(*content: str, role: str = "user") -> Message:
    parts = [image_part(part) if part in IMAGES else {"type": "text", "text": part} for part in content]
    return Message(role=role, content=parts)


def test_an_image_has_the_tokens_that_the_processor_gives_it():
    ids = CHAT.start([message("Look: ", "three", " and ", "one")], (), IMAGES)
    assert ids.count(PLACE) == 4
    starts = CHAT.image_starts(ids, [IMAGES["three"], IMAGES["one"]])
    assert [ids[start - 1] for start in starts] == [259, 259]  # <|vision_start|>
    assert CHAT.text(ids[: starts[0]]).endswith("Look: <|vision_start|>")


def test_a_tools_image_adds_only_its_own_message():
    ids = CHAT.extend([message("one", "seen", role="tool")], (), turn_closed=True, images=IMAGES)
    assert ids.count(PLACE) == 1
    assert CHAT.text(ids).count("<|im_start|>") == 2  # the starts of the answer and of the next turn


@pytest.mark.parametrize("spelled", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"])
@pytest.mark.parametrize("images", [(), ("three",)])
def test_text_never_becomes_an_image(spelled, images):
    prompt = CHAT.start([message(*images, f"the token {spelled}")], (), IMAGES)
    answer = CHAT.extend([message(*images, spelled, role="tool")], (), turn_closed=True, images=IMAGES)
    for ids in (prompt, answer, CHAT.start([{"role": "user", "content": spelled}], ())):
        assert ids.count(PLACE) == (3 * len(images) if ids is prompt or ids is answer else 0)
        assert spelled in CHAT.text(ids)  # the spelled-out control token stays as text


def test_a_prompt_s_other_control_tokens_are_still_trusted():
    assert CHAT.start([{"role": "user", "content": "<|im_end|>"}], ()).count(258) == 2


@given(st.lists(st.sampled_from(["one", "three", "a", "<|image_pad|>", "bc"]), max_size=8))
def test_images_are_found_again(content):
    names = [part for part in content if part in IMAGES]
    for make in (
        lambda: CHAT.start([message(*content)], (), IMAGES),
        lambda: CHAT.extend([message(*content, role="tool")], (), turn_closed=False, images=IMAGES),
    ):
        ids, data = make(), [IMAGES[name] for name in names]
        covered = {
            start + place
            for start, each in zip(CHAT.image_starts(ids, data), data, strict=True)
            for place in range(each[0])
        }
        assert covered == {place for place, token in enumerate(ids) if token == PLACE}


def test_images_without_a_processor_are_refused():
    chat = ChatFormat(vision_tokenizer(), no_images="not today")
    assert not chat.takes_images
    with pytest.raises(DataError, match="field 'images': not today"):
        chat.start([message("one")], (), IMAGES)


def test_templates_without_image_placeholders_render_text():
    tokenizer = vision_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<|image_pad|>", "")
    for each, why in (
        (tokenizer, "the chat template writes no placeholder for an image: expected <|image_pad|>"),
        (family_tokenizer("chatml"), "the chat template refuses a conversation"),
    ):
        chat = ChatFormat(each, images=Counting())
        assert chat.start([{"role": "user", "content": "Hi"}], ())
        with pytest.raises(DataError, match=re.escape(f"field 'images': {why}")):
            chat.start([message("one")], (), IMAGES)


def test_a_template_that_loses_a_tools_image():
    tokenizer = vision_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<tool_response>\n{{ put(message.content) }}", "<tool_response>"
    )
    with pytest.raises(TemplateError, match="the chat template writes 0 placeholders for 1 images"):
        ChatFormat(tokenizer, images=Counting()).extend(
            [message("one", role="tool")], (), turn_closed=True, images=IMAGES
        )
