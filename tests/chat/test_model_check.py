"""Parts of `agentrl chat`: example arguments, example rollouts, thoughts of earlier turns, text of single tokens."""

from __future__ import annotations

import pytest
from chat_families import CHATS, TOKENIZERS, families, tokenizer_for
from jsonschema import validate
from public_templates import MISSING, NAMES, public_tokenizer

from agentrl.chat.example import EXAMPLE_TOOLS, QUESTION, example_arguments, example_conversation
from agentrl.chat.example_rollout import example_rollout
from agentrl.chat.format import ChatFormat
from agentrl.chat.model_check import Thoughts, check_model, thoughts_of
from agentrl.chat.pieces import id_pieces
from agentrl.types.messages import FunctionSchema, ToolSchema

START = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def schema(**properties):
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    return ToolSchema(function=FunctionSchema(name="f", parameters=parameters))


def test_example_arguments_fit_the_schema():
    kinds = ["string", "integer", "number", "boolean", "array", "object", ["null", "string"]]
    for given in [*({"type": kind} for kind in kinds), {"enum": [3, 4]}, {"type": "string", "examples": ["x"]}, {}]:
        found = schema(a=given, b={"type": "string"})
        arguments = example_arguments(found)
        assert set(arguments) == {"a"}  # the other one is not required
        validate(arguments, found.function.parameters)
    assert example_arguments(ToolSchema(function=FunctionSchema(name="g"))) == {}
    assert example_arguments(ToolSchema(function=FunctionSchema(name="g", parameters={"properties": 3}))) == {}


@families
def test_an_example_rollout_has_the_tokens_of_the_saved_conversation(name):
    chat, num_calls = CHATS[name], 2 if name in ("chatml", "thinking") else 1
    messages = example_conversation([QUESTION], EXAMPLE_TOOLS, num_calls, user_turn=True, thoughts=False)
    rollout = example_rollout(chat, messages, EXAMPLE_TOOLS)
    saved = chat.dialogue(messages, EXAMPLE_TOOLS)
    assert [each.author for each in rollout.segments] == [each.author for each in saved.segments]
    assert rollout.token_ids == saved.token_ids


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{{ m.content }}", Thoughts.KEPT),
        ("{{ m.content.split('</think>')[-1] }}", Thoughts.DROPPED),
        ("{{ m.content.split('</think>')[-1] if messages[-1].role == 'user' else m.content }}", Thoughts.UNTIL_USER),
        ("{{ raise_exception('one message') if loop.index0 else m.content }}", None),
    ],
)
def test_thoughts_of_earlier_turns(content, expected):
    assert thoughts_of(ChatFormat(tokenizer_for(START + content + END))) == expected


@pytest.mark.skipif(not NAMES, reason=MISSING)
def test_a_template_that_cannot_render_saved_turns_is_shown_as_a_rollout():
    chat = ChatFormat(public_tokenizer("deepseekv3"))
    found = check_model(chat, EXAMPLE_TOOLS, "auto", [QUESTION])
    assert found.refusals == ()
    assert "does not begin a saved assistant turn with the generation prompt" in found.unsaved
    assert [each.author.trained for each in found.conversation.segments] == [False, True] * 3
    assert "get_weather" in chat.text(found.conversation.segments[1].token_ids)


def test_a_character_of_several_tokens_is_in_its_last_piece():
    tokenizer = TOKENIZERS["chatml"]
    ids = tokenizer.encode("a <|im_end|>é€😀")
    pieces = id_pieces(tokenizer, ids)
    assert "".join(pieces) == "a <|im_end|>é€😀"
    assert pieces[-4:] == ["", "", "", "😀"]
    assert id_pieces(tokenizer, ids[:-1])[-1] == "\ufffd"  # cut inside the character
