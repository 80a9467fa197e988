"""`agentrl chat`: what it finds in a model, its two outputs, its exit status, and its errors."""

from __future__ import annotations

import io
import json

import pytest
from chat_families import FAMILIES, TOKENIZERS, families, tokenizer_for
from rich.console import Console

from agentrl.chat.example import EXAMPLE_TOOLS, QUESTION
from agentrl.chat.format import ChatFormat
from agentrl.chat.model_check import check_model
from agentrl.cli.chat.output import print_check
from agentrl.cli.main import main

FLIP = """
from agentrl.tools.function import tool

@tool
def flip(side: str) -> str:
    'Flip a coin.'
    return side
"""
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Folders with a tokenizer only; reading a file of weights would fail."""

    def save(tokenizer, name):
        folder = tmp_path_factory.mktemp(name)
        tokenizer.save_pretrained(folder)
        (folder / WEIGHTS).write_text("not read")
        return str(folder)

    return save


@pytest.fixture
def chat(capsys):
    def run(*words):
        status = main(["chat", "--json", *words])
        said = capsys.readouterr()
        return status, json.loads(said.out) if status < 2 else said.err

    return run


def texts(document, author):
    return [
        "".join(token["text"] for token in each["tokens"]) for each in document["segments"] if each["author"] == author
    ]


def tool_file(path, *names):
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    path.write_text(json.dumps([{"name": name, "description": "x", "parameters": parameters} for name in names]))
    return str(path)


@families
def test_conversation_is_that_of_the_template_token_by_token(folder_of, chat, name):
    status, found = chat(folder_of(TOKENIZERS[name], name))
    if name == "inst":  # its calls are in no built-in format
        assert (status, found["accepted"], found["format"]) == (1, False, None)
        assert [each["what"] for each in found["refusals"]] == ["tool calls"]
    else:
        assert (status, found["accepted"], found["refusals"]) == (0, True, [])
        assert found["format"] == {"headers": "llama3_json"}.get(name, "hermes")
    tokenizer = TOKENIZERS[name]
    for segment in found["segments"]:
        ids = [token["id"] for token in segment["tokens"]]
        assert "".join(token["text"] for token in segment["tokens"]) == tokenizer.decode(ids)
    assert [each["author"] for each in found["segments"]] == ["prompt", "model", "tool", "model", "user", "model"]
    assert [each["trained"] for each in found["segments"]] == [False, True] * 3
    assert all(text.endswith(FAMILIES[name][2]) for text in texts(found, "model"))
    assert found["stop_tokens"][0] == FAMILIES[name][2]


@pytest.mark.slow
def test_parallel_calls_and_thoughts_are_those_of_the_template(folder_of, chat):
    found = {name: chat(folder_of(TOKENIZERS[name], name))[1] for name in ("chatml", "thinking", "headers")}
    assert {name: each["parallel_calls"] for name, each in found.items()} == {
        "chatml": True,
        "thinking": True,
        "headers": False,  # "one call at a time"
    }
    assert {name: each["thoughts"] for name, each in found.items()} == {
        "chatml": "kept",
        "thinking": "kept until the next user message",
        "headers": "kept",
    }
    assert "get_weather" in texts(found["chatml"], "model")[0]
    assert "search" in texts(found["chatml"], "model")[0]


def test_own_tools_and_own_data(folder_of, chat, tmp_path):
    tools = tool_file(tmp_path / "tools.json", "roll_dice")
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt": [{"role": "user", "content": "Roll, please."}], "ground_truth": "1"}))
    status, found = chat(folder_of(TOKENIZERS["chatml"], "chatml"), "--tools", tools, "--data", str(data))
    assert status == 0
    assert "Roll, please." in texts(found, "prompt")[0]
    assert '{"name": "roll_dice", "arguments": {"n": 1}}' in texts(found, "model")[0]
    code = tmp_path / "tools.py"
    code.write_text(FLIP)
    data.write_text(
        json.dumps({"messages": [{"role": "user", "content": "Flip."}, {"role": "assistant", "content": "x"}]})
    )
    status, found = chat(folder_of(TOKENIZERS["chatml"], "chatml"), "--tools", str(code), "--data", str(data))
    assert status == 0
    assert "Flip." in texts(found, "prompt")[0]
    assert '"name": "flip"' in texts(found, "model")[0]


def test_a_named_format_that_does_not_fit_is_refused(folder_of, chat):
    folder = folder_of(TOKENIZERS["headers"], "headers")
    status, found = chat(folder, "rollout.multi_turn.format=hermes")
    assert status == 1
    (refusal,) = found["refusals"]
    assert refusal["what"] == "tool calls"
    assert "use 'llama3_json'" in refusal["why"]
    assert len(found["segments"]) == 6  # the conversation is shown all the same


def test_template_without_tools_is_refused_but_shown(folder_of, chat):
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    plain = plain.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
    prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    status, found = chat(folder_of(tokenizer_for(plain + prompt), "plain"))
    assert status == 1
    assert [each["what"] for each in found["refusals"]] == ["tool calls", "tool results"]
    assert found["format"] is None
    assert [each["author"] for each in found["segments"]] == ["prompt", "model", "user", "model"]


def test_all_mistakes_are_reported_together(chat, folder_of, tmp_path):
    bad = tmp_path / "tools.json"
    bad.write_text('[{"description": "no name"}]')
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "rows.jsonl").write_text('{"question": "no prompt"}')
    status, said = chat(str(empty), "--tools", str(bad), "--data", str(tmp_path / "rows.jsonl"))
    assert status == 2
    lines = said.splitlines()
    assert len(lines) == 3
    assert "tools.json: field 'tools[0].function.name': Field required" in said
    assert "rows.jsonl" in said
    assert "no field 'prompt'" in said
    assert "empty" in lines[0]


def test_unknown_folder_missing_template_and_other_words(chat, folder_of, tmp_path):
    status, said = chat(str(tmp_path / "absent"), "rollout.multi_turn.tool_config_path=absent.yaml")
    assert status == 2
    assert "there is no folder" in said
    assert "absent.yaml" in said  # together
    status, said = chat(folder_of(tokenizer_for(None), "untold"))
    assert status == 2
    assert "has no chat template: set model.chat_template" in said
    assert chat("a/b", "c/d")[1] == "agentrl: error: expected one model, got 2: a/b, c/d\n"
    status, said = chat(str(tmp_path), "--tools", "tools.txt")
    assert "--tools: expected a .py, .yaml or .json file, got 'tools.txt'" in said


@pytest.mark.parametrize("colour", [False, True])
def test_terminal_output_fits_80_columns(colour):
    format = ChatFormat(TOKENIZERS["headers"])
    found = check_model(format, EXAMPLE_TOOLS, "auto", [QUESTION])
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=colour, color_system="standard" if colour else None)
    print_check("some/model", format, found, console)
    said = stream.getvalue()
    assert ("\x1b[" in said) == colour
    console = Console(file=(plain := io.StringIO()), width=80)
    print_check("some/model", format, found, console)
    lines = plain.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "model (trained on)" in plain.getvalue()
    assert lines[-1] == "accepted: tools, their results and further user messages"
    assert " model {" in plain.getvalue()
    assert "<|eot|>│<|start_header|>│" in plain.getvalue()
