"""The calculator with another chat template: its control tokens, its form of calls, SFT and RL with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from chat_families import HEADERS
from transformers import AutoTokenizer
from warm_agentrl import agentrl

from agentrl.audit.auditor import Auditor
from agentrl.chat.format import ChatFormat
from agentrl.data.dialogues import read_dialogue
from agentrl.registry import load_module, load_object
from agentrl.tools.function import as_tool

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
calculator = load_object(f"{CALCULATOR}/tool.py:calculator")
added_tokens = load_object(f"{CALCULATOR}/tiny_model.py:added_tokens")
FEW_ROWS = {"test": 4, "val": 4, "train": 16, "sft": 100}
CALL = '<|end_header|>\n\n{"name": "calculator", "parameters": {"expression": "'


@pytest.fixture(scope="module")
def task_with_headers(tmp_path_factory):
    """A small task; its template is modelled on that of Llama 3.1."""
    folder = tmp_path_factory.mktemp("headers")
    (folder / "headers.jinja").write_text(HEADERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CALCULATOR))
        module = load_module(str(CALCULATOR / "make_task.py"))
        patch.setattr(module, "NUM_ROWS", FEW_ROWS)
        module.make_task(folder / "task", seed=0, template=folder / "headers.jinja")
    return folder / "task"


def test_control_tokens_are_those_in_the_text_of_the_template():
    template = (
        "{#- no <|comment|> -#}{{ bos_token }}{{ '<|user|>' + '<|end|>' if x else '<think>' }}<｜end▁of▁turn｜><b>"
    )
    special, tags = added_tokens(template)
    assert special == ["<|endoftext|>", "<|begin_of_text|>", "<|user|>", "<|end|>", "<｜end▁of▁turn｜>"]
    assert tags == ["<think>"]


def test_the_tokenizer_has_the_template_and_its_control_tokens(task_with_headers):
    tokenizer = AutoTokenizer.from_pretrained(task_with_headers / "model")
    assert tokenizer.chat_template == HEADERS
    assert tokenizer.eos_token == "<|eot|>"  # ends the last turn
    for token in ("<|begin|>", "<|start_header|>", "<|end_header|>", "<|eot|>"):
        assert len(tokenizer.encode(token)) == 1
    assert json.loads((task_with_headers / "task.json").read_text())["prompt_tokens"] < 64


def test_demonstrations_call_in_the_form_of_the_template(task_with_headers):
    chat = ChatFormat(AutoTokenizer.from_pretrained(task_with_headers / "model"))
    schemas = [as_tool(calculator).schema]
    rows = [json.loads(line) for line in (task_with_headers / "sft.jsonl").read_text().splitlines()]
    calling = [row for row in rows if any("tool_calls" in message for message in row["messages"])]
    assert len(calling) > 50
    for row in calling:
        dialogue = chat.dialogue(read_dialogue(row).messages, schemas)
        assert CALL in chat.tokenizer.decode(dialogue.token_ids)


@pytest.mark.slow
def test_sft_and_grpo_with_the_template_of_another_model(task_with_headers, tmp_path):
    def train(experiment, model, rows):
        run = tmp_path / experiment
        words = (
            *(f"+experiment={experiment}", f"model.path={model}", "rollout.multi_turn.format=llama3_json"),
            *(
                f"data.train_files=[{task_with_headers}/{rows}.jsonl]",
                f"data.val_files=[{task_with_headers}/val.jsonl]",
            ),
            f"trainer.default_local_dir={run}",
            *("trainer.total_training_steps=2", "trainer.stop_when=null", "trainer.test_freq=0"),
        )
        subprocess.run([*agentrl(), "train", *words], check=True)
        return run

    sft = train("calculator_sft", task_with_headers / "model", "sft")
    rl = train("calculator", sft / "checkpoints/latest", "train")
    ledger = Auditor(folder=rl).audit(sorted((rl / "trajectories").rglob("*.parquet")))
    assert {name for name, finding in ledger.findings.items() if finding.num_problems} == set()
