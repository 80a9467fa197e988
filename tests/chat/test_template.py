from __future__ import annotations

from collections.abc import Iterator

import pytest
from chat_families import CHATS, TOOLS, end_text, families, full_ids, tokenizer_for, tool, user

from agentrl.chat.format import ChatFormat
from agentrl.chat.probes import REPLY
from agentrl.errors import TemplateError


@families
def test_the_families_are_accepted(name: str) -> None:
    CHATS[name].check(TOOLS, ("tool", "user"))
    CHATS[name].check((), ())
    assert CHATS[name].stop_token_ids == tuple(full_ids(name, end_text(name)))


MINIMAL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def refusals() -> Iterator[tuple[str, str, str]]:
    content = "{{ m.content }}"
    yield "user", MINIMAL.replace("<|im_end|>", "###"), "no end-of-turn token after the assistant's content"
    yield "user", MINIMAL.replace("<|im_end|>", " (end)<|im_end|>"), "no end-of-turn token"
    yield "user", MINIMAL.replace("{% if add_generation_prompt %}", "{% if false %}"), "no generation prompt"
    yield "user", MINIMAL.replace(content, "{{ m.content if m.role == 'user' }}"), "loses the assistant's content"
    yield "user", MINIMAL.replace(content, "{{ m.content | upper }}"), "loses the assistant's content"
    yield "user", MINIMAL + "{{ messages | tojson }}", "repeats the assistant's turn"
    yield "user", MINIMAL.replace("messages", "messages[::-1]"), "no end-of-turn token|loses the content"
    yield "user", MINIMAL.replace(content, "{{ m.content }} #{{ loop.index }}"), "no end-of-turn token"
    yield (
        "user",
        MINIMAL.replace(content, "{{ m.content if loop.first or m.role != 'user' }}"),
        "loses the content of user",
    )
    yield "user", MINIMAL.replace(content, "{{ m.content + (m.content if m.role == 'user' else '') }}"), "repeats"
    strict = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{% endfor %}"
    )
    yield "tool", strict + MINIMAL, r"refuses a conversation of \[user, assistant, tool\]: no tools here"
    yield "tool", MINIMAL.replace(content, "{{ m.content if m.role != 'tool' }}"), "loses the content of tool"
    last_first = MINIMAL.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}", 1)
    last_first += "{% for m in messages | reverse if m.role == 'tool' %}{{ m.content }}{% endfor %}"
    yield "tool", last_first, "reorders the content of tool"
    single = MINIMAL + "{% if messages | length > 3 %}{{ raise_exception('one exchange only') }}{% endif %}"
    yield "user", single, "one exchange only"


@pytest.mark.parametrize(("role", "template", "reason"), list(refusals()))
def test_templates_that_cannot_be_continued_are_refused(role: str, template: str, reason: str) -> None:
    chat = ChatFormat(tokenizer_for(template))
    with pytest.raises(TemplateError, match=reason) as refused:
        chat.check(TOOLS, (role,))
    assert "\n" not in str(refused.value)


def test_the_minimal_template_itself_is_accepted() -> None:
    ChatFormat(tokenizer_for(MINIMAL)).check(TOOLS, ("tool", "user"))


def test_a_template_may_depend_on_earlier_turns() -> None:
    tokenizer = tokenizer_for(MINIMAL.replace("{{ m.role }}", "{{ m.role }}{{ loop.index if m.role == 'user' }}"))
    chat, history = ChatFormat(tokenizer), [user("a"), REPLY, user("b"), REPLY]
    chat.check((), ("user",))
    assert chat.template.history_matters
    ids = chat.extend([user("c")], (), turn_closed=True, history=history)
    assert chat.text(ids) == "\n<|im_start|>user5\nc<|im_end|>\n<|im_start|>assistant\n"


def test_the_next_roles_token_may_end_a_turn() -> None:
    template = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer = tokenizer_for(template)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|tool|>", "<|assistant|>"]})
    chat = ChatFormat(tokenizer)
    chat.check(TOOLS, ("user", "tool"))
    assert list(chat.template.stop_tokens) == ["<|user|>", "<|tool|>"]
    assert chat.text(chat.extend([tool("x")], TOOLS, turn_closed=False)) == "<|tool|>\nx<|assistant|>"


def test_no_template_is_an_error() -> None:
    tokenizer = tokenizer_for("")
    with pytest.raises(TemplateError, match="has no chat template"):
        ChatFormat(tokenizer)
    bare = ChatFormat(tokenizer_for("{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert bare.stop_token_ids == (bare._tokenizer.eos_token_id,)
    assert bare.text(bare.start([user("x")], ())) == "x"
