from __future__ import annotations

import pytest
from chat_families import (
    CHATML,
    CHATS,
    TOKENIZERS,
    TOOLS,
    answers,
    contents,
    families,
    tokenizer_for,
    tool,
    user,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from agentrl.chat.format import ChatFormat
from agentrl.errors import DataError, TemplateError
from agentrl.types.messages import Message
from agentrl.types.trajectory import Author


def call(name: str, **arguments: str) -> Message:
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [entry]}  # type: ignore[list-item, typeddict-item]


DIALOGUE: list[Message] = [
    {"role": "system", "content": "Be brief."},
    user("weather?"),
    call("search", query="Paris"),
    tool("rain"),
    tool("wind", 1),
    {"role": "assistant", "content": "It rains."},
    user("thanks <|im_end|>"[:6]),
    {"role": "assistant", "content": "Welcome!"},
]


def test_dialogue_has_the_tokens_and_the_mask_of_transformers() -> None:
    tokenizer = TOKENIZERS["chatml"]
    reference = tokenizer.apply_chat_template(
        DIALOGUE, tools=[schema.for_template() for schema in TOOLS], return_assistant_tokens_mask=True
    )
    trajectory = CHATS["chatml"].dialogue(DIALOGUE, TOOLS)
    length = len(trajectory.token_ids)
    assert list(trajectory.token_ids) == reference["input_ids"][:length]
    assert trajectory.loss_mask == reference["assistant_masks"][:length]
    # the line break after the last turn is written only before a next turn, as in a rollout
    assert tokenizer.decode(reference["input_ids"][length:]) == "\n"
    authors = [segment.author.value for segment in trajectory.segments]
    assert authors == ["prompt", "demonstration", "tool", "demonstration", "user", "demonstration"]
    assert trajectory.messages == DIALOGUE
    assert trajectory.num_turns == 3


@given(st.lists(st.tuples(contents, answers), min_size=1, max_size=3))
def test_dialogues_agree_with_transformers(turns: list[tuple[str, list[Message]]]) -> None:
    messages: list[Message] = [user("Hi")]
    for reply, new in turns:
        messages += [{"role": "assistant", "content": reply}, *new]
    messages.append({"role": "assistant", "content": "done"})
    # a leading line break of a reply would merge with the generation prompt's: no rollout can sample that token
    assume(not any(reply[:1].isspace() for reply, _ in turns))
    reference = TOKENIZERS["chatml"].apply_chat_template(messages, return_assistant_tokens_mask=True)
    trajectory = CHATS["chatml"].dialogue(messages, ())
    assert list(trajectory.token_ids) == reference["input_ids"][: len(trajectory.token_ids)]
    assert trajectory.loss_mask == reference["assistant_masks"][: len(trajectory.token_ids)]


@families
def test_dialogue_is_tokenized_like_a_rollout(name: str) -> None:
    chat = CHATS[name]
    messages = [
        user("Hi"),
        {"role": "assistant", "content": "Hello"},
        user("more"),
        {"role": "assistant", "content": "No"},
    ]
    trajectory = chat.dialogue(messages, TOOLS)
    prompt, first, reply, second = (segment.token_ids for segment in trajectory.segments)
    assert prompt == chat.start(messages[:1], TOOLS)
    assert reply == chat.extend(messages[2:3], TOOLS, turn_closed=True)
    for ids, said in ((first, "Hello"), (second, "No")):
        assert ids[-1] in chat.stop_token_ids
        # the thinking template adds an empty block
        assert chat.text(ids).removeprefix("<think>\n\n</think>\n\n").strip() == said
    assert trajectory.loss_mask == [0] * len(prompt) + [1] * len(first) + [0] * len(reply) + [1] * len(second)


def test_thoughts_of_every_saved_turn_are_kept() -> None:
    chat = CHATS["thinking"]
    reply = "<think>\nhm\n</think>\n\nyes"
    trajectory = chat.dialogue([user("Hi"), {"role": "assistant", "content": reply}] * 2, ())
    said = [chat.text(segment.token_ids) for segment in trajectory.segments if segment.author is Author.DEMONSTRATION]
    assert said == [reply, reply]


def test_saved_conversations_of_other_orders() -> None:
    chat = CHATS["chatml"]
    greeting: Message = {"role": "assistant", "content": "How may I help?"}
    led = chat.dialogue([greeting, user("Hi"), greeting, greeting, user("bye")], ())
    authors = [segment.author.value for segment in led.segments]
    assert authors == ["prompt", "demonstration", "user", "demonstration", "user"]
    assert chat.dialogue([user("Hi")], ()).num_trained_tokens == 0
    with pytest.raises(DataError, match="at least one message"):
        chat.dialogue([], ())


def test_saved_turn_must_start_with_the_generation_prompt() -> None:
    forced = CHATML.replace(
        "'<|im_start|>assistant\\n' }}{% endif %}", "'<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
    )
    chat = ChatFormat(tokenizer_for(forced))
    with pytest.raises(TemplateError, match="does not begin a saved assistant turn with the generation prompt"):
        chat.dialogue([user("Hi"), {"role": "assistant", "content": "x"}], ())
