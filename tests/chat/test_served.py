"""Histories as servers render them: equal to transformers' rendering, whatever the contents."""

from __future__ import annotations

from datetime import date

import pytest
from chat_families import ADDED, CHATML, SPECIAL, THINKING, TOOLS, tokenizer_for, tool, user
from hypothesis import given
from hypothesis import strategies as st
from public_templates import NAMES as PUBLIC
from public_templates import template_text

from agentrl.chat.format import ChatFormat
from agentrl.chat.history import with_thoughts
from agentrl.chat.probes import with_text_arguments
from agentrl.chat.served import check_history
from agentrl.chat.template import DATE
from agentrl.errors import TemplateError
from agentrl.types.messages import Message

# Like GLM: thoughts are in a field of their own, and those before the last question are dropped
FIELD = """
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.question = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and message.reasoning_content and loop.index0 > ns.question %}
        {{- '<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>' }}{% endif %}"""
TEMPLATES = {"content": THINKING, "field": FIELD, "none": CHATML}
CHATS = {name: ChatFormat(tokenizer_for(template)) for name, template in TEMPLATES.items()}


def call(name: str = "search", **arguments: object) -> dict:
    return {"id": "c00000000", "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(content: str, *calls: dict, thoughts: str | None = None) -> Message:
    message: dict = {"role": "assistant", "content": content}
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    return {**message, **({"tool_calls": list(calls)} if calls else {})}


def reference(chat: ChatFormat, messages, schemas=TOOLS) -> list[int]:
    """transformers' own rendering and encoding of the complete conversation."""
    tools = [schema.for_template() for schema in schemas] or None
    clock = date.fromisoformat(DATE).strftime
    return chat.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False, strftime_now=clock
    )


words = st.lists(st.sampled_from(["hi", " the", "\n", '"', "{", "é", "🙂", "<", "<tool", "x" * 9]), max_size=5)
plain = words.map("".join)
turns = st.builds(
    lambda thoughts, content, calls: turn(content, *calls, thoughts=thoughts),
    plain,
    plain,
    st.lists(st.builds(lambda text: call(query=text), plain), max_size=2),
)
histories = st.lists(
    st.one_of(
        st.tuples(turns, plain.map(user)),
        st.tuples(turns.filter(lambda each: "tool_calls" in each), plain.map(tool)),
    ),
    min_size=1,
    max_size=4,
).map(lambda pairs: [user("Hello"), *(message for pair in pairs for message in pair)])


@given(messages=histories, name=st.sampled_from(sorted(TEMPLATES)))
def test_a_history_equals_the_rendering_of_transformers(messages, name):
    chat = CHATS[name]
    assert chat.served(messages, TOOLS, num_opening=1) == reference(chat, with_thoughts(messages, chat.template))


control = st.sampled_from([*SPECIAL["chatml"], *ADDED])


@given(messages=histories, text=control, name=st.sampled_from(sorted(TEMPLATES)), where=st.integers(0, 99))
def test_text_of_later_messages_never_becomes_a_control_token(messages, text, name, where):
    """With a control token in a content, an argument or its name, the control tokens are those without it."""
    chat, place = CHATS[name], 1 + where % (len(messages) - 1)
    control_ids = set(chat.template.control_tokens.values())

    def spoiled(word: str) -> list[Message]:
        message = dict(messages[place])
        message["content"] = f"{message['content']}{word}"
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [*calls, call(word, **{word: [{word: word}]})]
        return [*messages[:place], message, *messages[place + 1 :]]

    def written(word: str) -> list[int]:
        ids = chat.served(spoiled(word), TOOLS, num_opening=1)
        return [token for token in ids if token in control_ids]

    if text in chat.template.control_tokens:
        assert written(text) == written("plain")
        decoded = chat.tokenizer.decode(chat.served(spoiled(text), TOOLS, num_opening=1))
        rendered = with_thoughts(spoiled(text), chat.template)
        tools = [schema.for_template() for schema in TOOLS]
        whole = chat.tokenizer.apply_chat_template(rendered, tools=tools, tokenize=False, add_generation_prompt=True)
        assert decoded == whole


def test_the_prompt_of_the_dataset_is_trusted():
    trusted = [user("a <|im_end|>"), turn("b"), user("c")]
    ids = CHATS["none"].served(trusted, (), num_opening=3)
    assert ids == CHATS["none"].start(trusted, ()) == reference(CHATS["none"], trusted, ())
    assert CHATS["none"].served(trusted, (), num_opening=0) != ids


def test_a_template_that_renders_no_calls_is_refused():
    refusing = "{%- if message.tool_calls %}{{- raise_exception('no calls') }}{% endif %}"
    no_calls = CHATML.replace("{%- generation %}", f"{refusing}{{%- generation %}}")
    template = ChatFormat(tokenizer_for(no_calls)).template
    check_history(template, ())
    with pytest.raises(TemplateError, match="no calls"):
        check_history(template, TOOLS)


WITHOUT_CALLS = {
    *("cohere", "cohere2", "gemma", "gemma3", "idefics3", "llava_next", "smolvlm"),
    "gptoss",  # refuses thoughts beside a text before a call
}


@pytest.mark.slow
def test_histories_of_public_templates_are_their_own_rendering():
    """Whatever a public template drops; those that render no calls are refused."""
    messages = [
        user("Hi"),
        turn("yes", call(query="x"), thoughts="zqA"),
        tool("12"),
        turn("12", thoughts="zqB"),
        user("So?"),
    ]
    for name in PUBLIC:
        chat = ChatFormat(tokenizer_for(template_text(name)))
        try:
            check_history(chat.template, TOOLS)
            ids = chat.served(messages, TOOLS, num_opening=1)
        except TemplateError:
            assert name in WITHOUT_CALLS
            continue
        assert name not in WITHOUT_CALLS
        shown = with_thoughts(messages, chat.template)
        shown = [with_text_arguments(message) for message in shown] if name == "deepseekv3" else shown
        assert ids == reference(chat, shown), name
