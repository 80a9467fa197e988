"""Thoughts in the history, and thoughts that the generation prompt begins."""

from __future__ import annotations

import pytest
from chat_families import CHATML, THINKING, tokenizer_for
from hypothesis import given
from hypothesis import strategies as st

from agentrl.chat.base import ParsedTurn
from agentrl.chat.format import ChatFormat
from agentrl.chat.history import as_one_text, field_of
from agentrl.chat.parsers import tool_parsers
from agentrl.chat.parsers.thinking import join_thinking, plain_turn, split_thinking, tell_apart
from agentrl.types.messages import Message

PROMPT = "{{- '<|im_start|>assistant\\n' }}{% endif %}"
OPENED = CHATML.replace(PROMPT, PROMPT.replace("assistant\\n", "assistant\\n<think>\\n"))
READS = "{{- '<think>' + message.NAME + '</think>' if message.NAME }}{{- message.content }}"


def chat(template: str, **variables: object) -> ChatFormat:
    return ChatFormat(tokenizer_for(template), template_kwargs=variables)


def reading(name: str) -> str:
    """A template that reads thoughts by this name."""
    return CHATML.replace("{{- message.content }}", READS.replace("NAME", name))


def test_the_generation_prompt_may_begin_the_thoughts() -> None:
    assert OPENED != CHATML
    assert chat(OPENED).opened == "<think>\n"
    assert chat(CHATML).opened == chat(THINKING).opened == ""
    assert chat(THINKING, enable_thinking=False).opened == ""  # it writes empty thoughts, which are closed
    assert chat("{{ raise_exception('no') }}").opened == ""


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_get_the_name_that_the_template_reads(name: str) -> None:
    told_apart = chat(reading(name))
    turn: Message = {"role": "assistant", "content": "No.", "reasoning_content": "Hm"}
    assert field_of(told_apart.template) == name
    assert told_apart.history([turn]) == [{"role": "assistant", "content": "No.", name: "Hm"}]


def test_thoughts_become_content_if_the_template_reads_none() -> None:
    turn: Message = {"role": "assistant", "content": "No.", "reasoning_content": "Hm"}
    user: Message = {"role": "user", "content": "Is it?"}
    assert field_of(chat(CHATML).template) is None
    assert chat(CHATML).history([user, turn]) == [user, as_one_text(turn)]
    assert as_one_text(turn) == {"role": "assistant", "content": "<think>\nHm\n</think>\n\nNo."}
    assert as_one_text(user) == user


words = st.sampled_from(["<think>", "</think>", "a", "\n", " ", "b"])


@given(st.text() | st.lists(words, max_size=8).map("".join))
def test_telling_apart_loses_only_tags_and_whitespace(text: str) -> None:
    thoughts, content = tell_apart(text)
    for part in (thoughts, content):
        assert part == part.strip()
    kept = [text.replace("<think>", "").replace("</think>", "").count(letter) for letter in "ab"]
    assert [(thoughts + content).count(letter) for letter in "ab"] == kept


@given(st.text("ab \n", min_size=1).map(str.strip).filter(bool), st.text("ab \n").map(str.strip))
def test_joined_thoughts_are_split_again(thoughts: str, content: str) -> None:
    text = join_thinking(thoughts, content)
    assert tell_apart(text) == (thoughts, content)
    assert split_thinking(text) == (thoughts, f"\n\n{content}")
    assert join_thinking("", content) == content


def test_end_tag_inside_a_call_ends_no_thoughts() -> None:
    assert split_thinking("CALL a</think>b", call="CALL") == ("", "CALL a</think>b")
    assert split_thinking("a</think>CALL b", call="CALL") == ("a", "CALL b")
    assert split_thinking("<think>CALL a</think>b", call="CALL") == ("CALL a", "b")


class Bracketed:
    """A format with marks of its own."""

    stop = ()

    def parse(self, text: str) -> ParsedTurn:
        raise AssertionError("a turn that was cut is not parsed")

    def split_thinking(self, text: str) -> tuple[str, str]:
        return split_thinking(text, "[THINK]", "[/THINK]")


def test_turns_that_are_not_parsed_have_thoughts() -> None:
    hermes = tool_parsers.get("hermes")()
    assert plain_turn(hermes, "<think>\nso\n</think>\n\n<tool_call>{") == ParsedTurn("<tool_call>{", (), "so")
    assert plain_turn(hermes, "<think>\nso <tool_call>") == ParsedTurn("", (), "so <tool_call>")
    assert plain_turn(hermes, "<think>a</think>b<think>c</think>d") == ParsedTurn("bd", (), "a\nc")
    assert plain_turn(hermes, " no thoughts ") == ParsedTurn(" no thoughts ")
    assert plain_turn(Bracketed(), "[THINK]so[/THINK]<tool_call>") == ParsedTurn("<tool_call>", (), "so")
