"""Templates of public models: the text after a model turn is that of the complete rendering."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import date

import pytest
from chat_families import TOOLS, tool
from hypothesis import assume, given
from hypothesis import strategies as st
from public_templates import MISSING, NAMES, public_tokenizer

from agentrl.chat.format import ChatFormat
from agentrl.chat.template import DATE
from agentrl.errors import TemplateError
from agentrl.types.messages import FunctionCall, Message, MessageToolCall
from agentrl.types.trajectory import Author

pytestmark = pytest.mark.skipif(not NAMES, reason=MISSING)

# Their templates have no tools: tool messages are refused, or lost.
NO_TOOLS = {"cohere", "cohere2", "gemma", "gemma3", "phi3", "phi3_5"}
# Of vision-language models, whose messages have lists of parts
NO_TEXT = {"idefics3", "llava_next", "smolvlm"}
QWEN_3_5 = {"qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}
# The generation prompt opens thoughts, and the template drops them from turns without thoughts. A rollout keeps them.
DROPS_OPENING = {
    *("deepseek_r1_distill", "deepseekv3", "nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super"),
    *("nemotron_3_ultra", *QWEN_3_5),
}
USERS = [Message(role="user", content="Hi")]
ONE_CALL = {"llama3_1", "llama3_2", "gptoss"}  # calls of a turn
TOOL_NAMES = [name for name in NAMES if name not in NO_TOOLS | NO_TEXT]
CHATS = {name: ChatFormat(public_tokenizer(name)) for name in NAMES if name not in NO_TEXT}
tool_templates = pytest.mark.parametrize("name", TOOL_NAMES)
texts = st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"a{text}b")


def calls(number: int, turn: int) -> Message:
    made = [
        MessageToolCall(
            id=f"c{turn:04d}{index:04d}",
            type="function",
            function=FunctionCall(name=TOOLS[index % 2].name, arguments={"query": f"q{turn}{index}"}),
        )
        for index in range(number)
    ]
    return Message(role="assistant", content="", tool_calls=made)


def answers_to(turn: Message, contents: Sequence[str]) -> list[Message]:
    made = turn["tool_calls"]
    return [
        Message(role="tool", name=call["function"]["name"], tool_call_id=call["id"], content=content)
        for call, content in zip(made, contents, strict=True)
    ]


def reference(name: str, messages: Sequence[Message]) -> str:
    """The template's own rendering of a conversation, with a generation prompt."""
    text_arguments = CHATS[name].template._needs_text_arguments
    given = json.loads(json.dumps(messages))
    for call in [call for message in given for call in message.get("tool_calls", ())]:
        if text_arguments:
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return str(
        public_tokenizer(name).apply_chat_template(
            given,
            tools=[schema.for_template() for schema in TOOLS],
            tokenize=False,
            add_generation_prompt=True,
            strftime_now=date.fromisoformat(DATE).strftime,
        )
    )


def turns_of(conversation: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Index of each assistant message after the first message, and of the next one."""
    found = [index for index, message in enumerate(conversation) if index and message["role"] == "assistant"]
    yield from zip(found, [*found[1:], len(conversation)], strict=True)


def check(name: str, conversation: Sequence[Message]) -> None:
    """Compare every continuation of the conversation with the complete rendering."""
    chat, tokenizer = CHATS[name], public_tokenizer(name)
    for turn, upto in turns_of(conversation):
        if turn == 1 or conversation[turn - 1]["role"] != "assistant":
            assert chat.start(conversation[:turn], TOOLS) == tokenizer.encode(
                reference(name, conversation[:turn]), add_special_tokens=False
            )
        new = list(conversation[turn + 1 : upto])
        if not new:
            continue
        whole = reference(name, conversation[:upto])
        ids = chat.extend(new, TOOLS, turn_closed=True, history=conversation[: turn + 1])
        end = chat.template.end_before(new)
        assert whole.endswith(end.token + tokenizer.decode(ids))
        assert tokenizer.encode(whole, add_special_tokens=False)[-len(ids) - 1 :] == [end.token_id, *ids]
        said = whole.removesuffix(tokenizer.decode(ids)).removesuffix(end.token)
        before = reference(name, conversation[:turn])
        if name not in DROPS_OPENING:
            assert said.startswith(before)
            assert all(str(message["content"]) not in said[len(before) :] for message in new)


def conversation(name: str, text: str, *, system: bool, counts: Sequence[int]) -> list[Message]:
    """A conversation with turns of calls (their numbers; 0: a turn of text and a question)."""
    found = [Message(role="system", content="Be brief.")] if system else []
    found.append(Message(role="user", content="Hi"))
    for turn, count in enumerate(counts):
        if not count:
            found += [Message(role="assistant", content=f"said {turn}"), Message(role="user", content=f"{text}{turn}u")]
            continue
        made = calls(1 if name in ONE_CALL else count, turn)
        found += [made, *answers_to(made, [f"{text}{turn}{index}t" for index in range(len(made["tool_calls"]))])]
    return found


FAST = [(True, (2, 1)), (False, (3, 0, 0, 2))]
SLOW = [
    (system, counts)
    for system in (True, False)
    for counts in ((1,), (2, 1), (1, 0, 3), (0, 1), (3, 0, 0, 2))
    if (system, counts) not in FAST
]


@tool_templates
@pytest.mark.one_in(4)
@pytest.mark.parametrize("cases", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["fast", "slow"])
def test_continuations_equal_the_complete_rendering(name: str, cases: list[tuple[bool, tuple[int, ...]]]) -> None:
    for system, counts in cases:
        check(name, conversation(name, "zq é日🙂", system=system, counts=counts))


@pytest.mark.slow
@pytest.mark.one_in(8)
@tool_templates
@pytest.mark.property
@given(text=texts, system=st.booleans(), counts=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_any_continuation_equals_the_complete_rendering(name: str, text: str, system: bool, counts: list[int]) -> None:
    """The reference turns a text that spells a control token into the token: that differs on purpose."""
    assume(not any(token in text for token in CHATS[name].template.control_tokens))
    assume(not any(token in text for token in public_tokenizer(name).all_special_tokens))
    check(name, conversation(name, text, system=system, counts=counts))


@pytest.mark.parametrize("name", sorted(DROPS_OPENING))
def test_dropped_openings(name: str) -> None:
    said = [*USERS, Message(role="assistant", content="said")]
    prompt = reference(name, USERS)
    assert "<think>" in prompt[-30:]
    assert not reference(name, [*said, *USERS]).startswith(prompt)


@tool_templates
def test_contents_never_become_control_tokens(name: str) -> None:
    chat = CHATS[name]
    spelled = "x" + "x".join(chat.template.control_tokens) + "x"
    plain, hostile = (
        chat.extend(answers_to(turn := calls(1, 0), [text]), TOOLS, turn_closed=True, history=[*USERS, turn])
        for text in ("x", spelled)
    )
    control = set(chat.template.control_tokens.values())
    assert [token for token in hostile if token in control] == [token for token in plain if token in control]


@tool_templates
def test_templates_with_tools_are_accepted(name: str) -> None:
    CHATS[name].check(TOOLS, ("tool", "user"))


@pytest.mark.parametrize("name", sorted(NO_TOOLS))
def test_templates_without_tools_are_accepted_for_users_only(name: str) -> None:
    CHATS[name].check((), ("user",))
    with pytest.raises(TemplateError):
        CHATS[name].check(TOOLS, ("tool",))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("glm4moe", ["<|user|>", "<|observation|>"]),
        ("gptoss", ["<|return|>", "<|call|>"]),
        ("gemma4", ["<turn|>", "<|tool_response>"]),
        ("llama3_1", ["<|eot_id|>", "<|eom_id|>"]),
        ("qwen3", ["<|im_end|>"]),
    ],
)
def test_end_of_turn_tokens(name: str, tokens: list[str]) -> None:
    assert list(CHATS[name].template.stop_tokens) == tokens


@pytest.mark.parametrize(("last", "closed"), [("<|observation|>", True), ("<|user|>", False), ("x", False)])
def test_answers_need_the_token_that_opens_them(last: str, closed: bool) -> None:
    chat = CHATS["glm4moe"]
    last_id = public_tokenizer("glm4moe").convert_tokens_to_ids(last)
    assert chat.is_closed(last_id, [tool("x")]) is closed


def test_a_gpt_oss_turn_of_calls_ends_with_its_own_token() -> None:
    """The history has `<|end|>` where the model has sampled `<|return|>`; the sampled token is kept."""
    chat = CHATS["gptoss"]
    ids = chat.extend([Message(role="user", content="So?")], TOOLS, turn_closed=False)
    assert public_tokenizer("gptoss").decode(ids).startswith("<|end|><|start|>user")
    ids = chat.extend([tool("x")], TOOLS, turn_closed=False)
    assert public_tokenizer("gptoss").decode(ids).startswith("<|call|><|start|>functions.")


@pytest.mark.parametrize("name", sorted({*TOOL_NAMES} - DROPS_OPENING | QWEN_3_5))
def test_saved_conversations_become_the_tokens_of_a_rollout(name: str) -> None:
    """Tool messages of a dataset may lack the name of the tool."""
    chat, saved = CHATS[name], conversation(name, "x", system=False, counts=(1, 0))
    nameless = Message(role="tool", tool_call_id=saved[2]["tool_call_id"], content=saved[2]["content"])
    trajectory = chat.dialogue([*saved[:2], nameless, *saved[3:]], TOOLS)
    demonstrations = [part for part in trajectory.segments if part.author is Author.DEMONSTRATION]
    assert all(part.token_ids[-1] in chat.stop_token_ids for part in demonstrations)
    answer = next(part for part in trajectory.segments if part.author is Author.TOOL)
    assert list(answer.token_ids) == chat.extend([saved[2]], TOOLS, turn_closed=True, history=saved[:2])


@pytest.mark.parametrize("name", sorted(DROPS_OPENING - QWEN_3_5))
def test_saved_turns_must_begin_with_the_generation_prompt(name: str) -> None:
    with pytest.raises(TemplateError, match="does not begin a saved assistant turn with the generation prompt"):
        CHATS[name].dialogue(conversation(name, "x", system=False, counts=(0,)), TOOLS)


def test_the_date_of_a_template_is_fixed() -> None:
    tokenizer = public_tokenizer("gptoss")
    today = ChatFormat(tokenizer, template_kwargs={"template_date": "2031-12-24"})
    assert f"Current date: {DATE}" in tokenizer.decode(CHATS["gptoss"].start(USERS, TOOLS))
    assert "Current date: 2031-12-24" in tokenizer.decode(today.start(USERS, TOOLS))
    with pytest.raises(TemplateError, match="template_date"):
        ChatFormat(tokenizer, template_kwargs={"template_date": "yesterday"})


def test_a_saved_turn_that_mentions_a_token_between_turns_is_complete() -> None:
    """GLM writes no end after a last turn."""
    said = Message(role="assistant", content="Type <|user|> to begin. Then wait.")
    text = public_tokenizer("glm4moe").decode(CHATS["glm4moe"].demonstration(said, TOOLS))
    assert text.endswith("Type <|user|> to begin. Then wait.<|user|>")
