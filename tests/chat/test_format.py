from __future__ import annotations

from collections.abc import Sequence

import pytest
from chat_families import (
    CHATML,
    CHATS,
    CONDITIONAL,
    TOKENIZERS,
    TOOLS,
    answers,
    end_text,
    families,
    family_tokenizer,
    full_ids,
    rendered,
    tokenizer_for,
    tool,
    user,
)
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from agentrl.chat.encode import TextEncoder
from agentrl.chat.format import ChatFormat
from agentrl.chat.prompt_cache import MAX_PROMPTS
from agentrl.types.messages import Message
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

# ---- messages after a turn ------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@families
@given(data=st.data())
def test_extension_equals_the_tail_of_the_complete_rendering(name: str, data: st.DataObject) -> None:
    new = data.draw(answers)
    whole = rendered(name, [user("Hi"), {"role": "assistant", "content": "Hello"}, *new])
    tail = whole.split("Hello" + end_text(name), 1)[1]
    extension = CHATS[name].extend(new, TOOLS, turn_closed=True)
    assert TOKENIZERS[name].decode(extension) == tail
    assert extension == full_ids(name, whole)[-len(extension) :]


@families
def test_ordinary_messages_need_no_rendering_per_turn(name: str) -> None:
    """All four families insert contents directly, stripped or as JSON. Other templates need a rendering per turn."""
    for new in ([tool("x")], [tool("x"), tool("y", 1)], [user("x")]):
        assert CHATS[name]._continuations.known(new, TOOLS)


def test_a_template_that_looks_into_contents_is_rendered_each_time() -> None:
    chat = ChatFormat(tokenizer_for(CONDITIONAL))
    assert "FAILED: an error" in chat.text(chat.extend([tool("an error")], TOOLS, turn_closed=True))
    assert "FAILED" not in chat.text(chat.extend([tool("fine")], TOOLS, turn_closed=True))


def test_fields_that_are_not_plain_words_are_rendered() -> None:
    strange = {**tool("x"), "tool_call_id": '"a b"\n<'}
    id_template = CHATML.replace("message.content + '\\n</tool", "message.content + message.tool_call_id + '\\n</tool")
    chat = ChatFormat(tokenizer_for(id_template))
    assert 'x"a b"\n<\n</tool_response>' in chat.text(chat.extend([strange], TOOLS, turn_closed=True))
    assert "xc00000000\n" in chat.text(chat.extend([tool("x")], TOOLS, turn_closed=True))


def test_messages_that_carry_parts_are_rendered() -> None:
    parts = CHATML.replace("message.content + '<|im_end|>\\n' }}", "message.content | tojson + '<|im_end|>\\n' }}", 1)
    chat = ChatFormat(tokenizer_for(parts))
    message: Message = {"role": "user", "content": [{"type": "text", "text": "look <|im_end|>"}]}
    ids = chat.extend([message], (), turn_closed=True)
    assert chat.text(ids).startswith('\n<|im_start|>user\n[{"type": "text", "text": "look <|im_end|>"}]<|im_end|>')
    assert ids.count(chat.stop_token_ids[0]) == 1


@families
def test_an_unfinished_turn_is_ended(name: str) -> None:
    chat = CHATS[name]
    closed, cut = (chat.extend([user("go on")], TOOLS, turn_closed=value) for value in (True, False))
    assert cut == [chat.stop_token_ids[0], *closed]


def test_blanks_before_the_end_of_turn_belong_to_it() -> None:
    spaced = CHATML.replace("{{- '<|im_end|>' }}{%- endgeneration", "{{- '\\n<|im_end|>' }}{%- endgeneration")
    chat = ChatFormat(tokenizer_for(spaced))
    chat.check(TOOLS, ("tool", "user"))
    ids = chat.extend([user("go on")], (), turn_closed=False)
    assert chat.text(ids).startswith("\n<|im_end|>\n<|im_start|>user")


def test_templates_render_the_current_tools_in_later_turns() -> None:
    """Templates that place tools before the last question render the current tools again for a new question."""
    chat = CHATS["inst"]
    with_both, with_one = (chat.text(chat.extend([user("x")], TOOLS[:count], turn_closed=True)) for count in (2, 1))
    assert "calculator" in with_both
    assert "search" in with_one
    assert "calculator" not in with_one
    assert "[TOOLS]" not in chat.text(chat.extend([user("x")], (), turn_closed=True))


def test_template_variables_reach_the_template() -> None:
    quiet = ChatFormat(TOKENIZERS["thinking"], template_kwargs={"enable_thinking": False})
    for ids in (quiet.start([user("x")], ()), quiet.extend([user("x")], (), turn_closed=True)):
        assert quiet.text(ids).endswith("assistant\n<think>\n\n</think>\n\n")


# ---- complete conversations -----------------------------------------------------------------------------------------


def model_segment(ids: Sequence[int]) -> Segment:
    return Segment(Author.MODEL, ids, [-1.0] * len(ids), [VersionSpan(0, len(ids))])


@pytest.mark.one_in(2)
@families
@given(data=st.data())
def test_sampled_tokens_stay_as_they_are(name: str, data: st.DataObject) -> None:
    """Random ids almost never equal the tokenization of their own text."""
    chat = CHATS[name]
    anything = st.lists(st.integers(0, len(TOKENIZERS[name]) - 1), min_size=1, max_size=12)
    trajectory = Trajectory([Segment(Author.PROMPT, chat.start([user("Hi")], TOOLS))])
    sampled = []
    for ids, new in data.draw(st.lists(st.tuples(anything, answers), min_size=1, max_size=4)):
        trajectory.append(model_segment(ids))
        chat.text(ids)
        closed = ids[-1] in chat.stop_token_ids
        trajectory.append(Segment(Author.USER, chat.extend(new, TOOLS, turn_closed=closed)))
        sampled += ids
    kept = [token for token, mask in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if mask]
    assert kept == sampled


@pytest.mark.one_in(2)
@families
@given(data=st.data())
def test_trajectories_read_as_the_template_renders_them(name: str, data: st.DataObject) -> None:
    """Holds for templates that only append (a thinking template: without thoughts), with tools that do not move."""
    chat, tools = CHATS[name], TOOLS if name != "inst" else []
    replies = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=10)
    turns = data.draw(st.lists(st.tuples(replies, answers), min_size=1, max_size=4))
    messages: list[Message] = [user("Hi")]
    ids = chat.start(messages, tools)
    for reply, new in turns:
        said = f" {reply}" if name == "inst" else reply  # this template writes a space that the model has to sample
        ids += full_ids(name, said + end_text(name)) + chat.extend(new, tools, turn_closed=True)
        messages += [{"role": "assistant", "content": reply}, *new]
    assert TOKENIZERS[name].decode(ids) == rendered(name, messages, tools)


def test_thoughts_are_kept_although_the_template_removes_them() -> None:
    chat = CHATS["thinking"]
    reply = "<think>\nhm\n</think>\n\nyes"
    ids = chat.start([user("Hi")], ()) + full_ids("thinking", reply + "<|im_end|>")
    ids += chat.extend([user("really?")], (), turn_closed=True)
    assert "hm" not in rendered("thinking", [user("Hi"), {"role": "assistant", "content": reply}, user("really?")], [])
    assert chat.text(ids) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nyes<|im_end|>\n"
        "<|im_start|>user\nreally?<|im_end|>\n<|im_start|>assistant\n"
    )


class Work:
    """Counts rendered and encoded characters."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerFast) -> None:
        self.num_rendered = self.num_characters = 0
        render, encode = tokenizer.apply_chat_template, TextEncoder.encode

        def counted_render(*args: object, **kwargs: object) -> object:
            self.num_rendered += 1
            return render(*args, **kwargs)

        def counted_encode(encoder: TextEncoder, text: str) -> list[int]:
            self.num_characters += len(text)
            return encode(encoder, text)

        monkeypatch.setattr(tokenizer, "apply_chat_template", counted_render)
        monkeypatch.setattr(TextEncoder, "encode", counted_encode)

    def take(self) -> tuple[int, int]:
        counted = self.num_rendered, self.num_characters
        self.num_rendered = self.num_characters = 0
        return counted


@families
def test_cost_per_turn_does_not_depend_on_the_conversation_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = family_tokenizer(name)
    chat, work = ChatFormat(tokenizer), Work(monkeypatch, tokenizer)
    ids, costs = chat.start([user("Hi")], TOOLS), []
    for number in range(100):
        ids += chat.extend([tool(f"result {number:03d}", number)], TOOLS, turn_closed=True)
        costs.append(work.take())
    assert costs[0][0] > 0  # the first calls also learn the template's shape
    assert set(costs[1:]) == {(0, costs[1][1])}
    assert costs[1][1] < 200 < len(rendered(name, [user("Hi")]))


def test_the_number_of_learnt_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.chat.continuation.MAX_SHAPES", 3)
    chat = ChatFormat(TOKENIZERS["chatml"])
    for count in range(1, 9):
        chat.extend([tool("x")] * count, TOOLS, turn_closed=True)
    assert len(chat._continuations._shapes) <= 3


# ---- the text of a turn ---------------------------------------------------------------------------------------------


def test_text_keeps_special_tokens_but_the_last_end_of_turn() -> None:
    chat = CHATS["chatml"]
    end = chat.stop_token_ids[0]
    hello = full_ids("chatml", "hello <tool_call> .")
    assert chat.text([*hello, end]) == "hello <tool_call> ."
    assert chat.text([end, *hello, end, end]) == "<|im_end|>hello <tool_call> .<|im_end|>"
    assert chat.text([]) == chat.text([end]) == ""
    assert chat.text([len(TOKENIZERS["chatml"]) + 5, *hello]) == "hello <tool_call> ."  # an id beyond the vocabulary


# ---- caches ---------------------------------------------------------------------------------------------------------


def test_cached_prompt_tokens_are_copied() -> None:
    chat = ChatFormat(family_tokenizer("chatml"))
    first = chat.start([user("Hi")], TOOLS)
    wanted = list(first)
    first.append(0)
    assert chat.start([user("Hi")], TOOLS) == wanted
    others = [chat.start([user("Ho")], TOOLS), chat.start([user("Hi")], ()), chat.start([tool("Hi")], TOOLS)]
    assert all(other != wanted for other in others)
    both = [user("Hi"), user("Ho")]
    assert chat.start(both, ()) == full_ids("chatml", rendered("chatml", both, ()))


def test_prompt_cache_size_is_limited_to_one_step() -> None:
    chat = ChatFormat(family_tokenizer("chatml"))
    for number in range(MAX_PROMPTS + 5):
        chat.start([user(str(number))], ())
    assert len(chat._prompts._kept) == MAX_PROMPTS


@pytest.mark.one_in(2)
@families
@given(text=st.text())
def test_text_of_tokens_equals_the_tokenizers(name: str, text: str) -> None:
    tokenizer = family_tokenizer(name)
    ids = [*tokenizer.all_special_ids, *tokenizer.encode(text, add_special_tokens=False)]
    assert ChatFormat(tokenizer)._encoder.decode(ids) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_tokenizer_with_custom_decoding_is_used() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args: object, **kwargs: object) -> str:
            return super()._decode(*args, **kwargs).upper()

    plain = tokenizer_for(CHATML)
    tokenizer = Shouting(tokenizer_object=plain.backend_tokenizer, chat_template=CHATML, eos_token="<|im_end|>")
    assert ChatFormat(tokenizer).text(plain.encode("it rains")) == "IT RAINS"
