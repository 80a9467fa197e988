"""The text of a message with any kind of content."""

from __future__ import annotations

import json

import pytest

from agentrl.types.messages import message_text

IMAGE = {"type": "image", "image": "cat.png"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}, {"text": "c"}], "abc"),
        (["a", IMAGE, "b"], "ab"),
        ({"type": "text", "text": "a"}, "a"),
        (7, ""),
    ],
)
def test_the_texts_of_the_parts_are_joined(content, text):
    assert message_text({"role": "user", "content": content}) == text


def test_a_message_may_have_no_content():
    assert message_text({"role": "assistant"}) == ""


def test_non_text_parts_use_the_given_function():
    content = ["a", IMAGE, {"text": None}, 7]
    text = message_text({"role": "user", "content": content}, json.dumps)
    assert text == f"a{json.dumps(IMAGE)}{json.dumps({'text': None})}7"
