"""Formats with the template variables of a row: equal to a format with these variables, shared, limited in number."""

from __future__ import annotations

from chat_families import TOOLS, family_tokenizer, tool, user

from agentrl.chat.format import ChatFormat
from agentrl.chat.variants import MAX_VARIANTS, Variants

CHAT = ChatFormat(family_tokenizer("thinking"), template_kwargs={"enable_thinking": True})


def test_a_variant_renders_as_a_format_with_these_variables():
    other = ChatFormat(family_tokenizer("thinking"), template_kwargs={"enable_thinking": False})
    variant = CHAT.with_variables({"enable_thinking": False})
    assert variant.start([user("a")], TOOLS) == other.start([user("a")], TOOLS) != CHAT.start([user("a")], TOOLS)
    for turn_closed in (True, False):
        extended = variant.extend([tool("b <|im_end|>")], TOOLS, turn_closed=turn_closed)
        assert extended == other.extend([tool("b <|im_end|>")], TOOLS, turn_closed=turn_closed)


def test_formats_are_shared():
    assert CHAT.with_variables({}) is CHAT
    variant = CHAT.with_variables({"role": 1, "enable_thinking": 2})
    assert CHAT.with_variables({"enable_thinking": 2, "role": 1}) is variant
    assert CHAT.with_variables({"enable_thinking": 2}) is not variant
    assert variant._encoder is CHAT._encoder  # a copy of the tokenizer is large


def test_the_variants_used_last_are_kept():
    made, variants = [], Variants[int]()

    def get(number: int) -> int:
        return variants.get({"a": number}, lambda: made.append(number) or number)

    for number in [*range(MAX_VARIANTS), 0, MAX_VARIANTS, 0, 1]:
        assert get(number) == number
    assert made == [*range(MAX_VARIANTS), MAX_VARIANTS, 1]
