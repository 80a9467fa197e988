"""The quickstart's task: data counts, answers checked against the tool, disjoint splits, determined by the seed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl.registry import load_object

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
compute_score = load_object(f"{CALCULATOR}/reward.py:compute_score")
calculator = load_object(f"{CALCULATOR}/tool.py:calculator")
make_model = load_object(f"{CALCULATOR}/tiny_model.py:make_model")


def rows(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def expression_of(messages):
    return re.fullmatch(r"What is (.+)\?", messages[1]["content"])[1]


def value_of(expression):
    assert re.fullmatch(r"[-+*()0-9]+", expression)
    return eval(expression)  # Python's arithmetic as independent reference


@pytest.mark.slow
def test_ground_truths_are_right_and_no_expression_occurs_twice(task_folder):
    splits = {name: rows(task_folder, name) for name in ("train", "val", "test")}
    assert {name: len(split) for name, split in splits.items()} == {"train": 2048, "val": 256, "test": 512}
    for row in (row for split in splits.values() for row in split):
        assert str(value_of(expression_of(row["prompt"]))) == row["ground_truth"]
    expressions = [expression_of(row["prompt"]) for split in splits.values() for row in split]
    expressions += [expression_of(row["messages"]) for row in rows(task_folder, "sft")]
    assert len(set(expressions)) == len(expressions) == 2048 + 256 + 512 + 11_200


@pytest.mark.slow
def test_teacher_is_correct_in_a_quarter_of_its_traces(task_folder):
    def is_right(messages):
        return messages[-1]["content"] == f"The answer is {value_of(expression_of(messages))}"

    traces = [row["messages"] for row in rows(task_folder, "sft")]
    share = sum(map(is_right, traces)) / len(traces)
    assert share == json.loads((task_folder / "task.json").read_text())["teacher_share_correct"] == 0.25
    habits = Counter(len(messages) for messages in traces if not is_right(messages))
    assert habits[3] > 1000 < habits[5]  # some demonstrations give up at once, more after one call


def test_tool_answers_equal_those_in_the_traces(task_folder):
    asked, answered = [], []
    for row in rows(task_folder, "sft"):
        for message in row["messages"]:
            asked += [call["function"]["arguments"]["expression"] for call in message.get("tool_calls", [])]
            answered += [message["content"]] * (message["role"] == "tool")
    assert len(asked) > 11_200
    assert [calculator(expression) for expression in asked] == answered


@pytest.mark.slow
def test_python_answers_equal_those_in_the_traces_that_call_it(make_task, tmp_path):
    facts = make_task(tmp_path, seed=0, tool="python")
    assert facts["teacher_share_correct"] == 0.25
    for row in rows(tmp_path, "sft"):
        calls = [call["function"] for message in row["messages"] for call in message.get("tool_calls", [])]
        answers = [message["content"] for message in row["messages"] if message["role"] == "tool"]
        assert [call["name"] for call in calls] == ["python"] * len(answers)
        assert [str(value_of(call["arguments"]["code"])) for call in calls] == answers


@pytest.mark.parametrize("expression", ["1+2+3", "(1+2)", "1/2", "", "1e3+1", "9" * 10 + "+1", "one+two"])
def test_calculator_computes_one_operation_only(expression):
    assert calculator(expression) == "error"


def test_calculator_accepts_negative_numbers():
    assert [calculator("-3*-4"), calculator(" 5 - -6 "), calculator("-7+2")] == ["12", "11", "-5"]


@pytest.mark.parametrize(
    ("last_turn", "score"),
    [
        ("The answer is -12", 1),
        ("The answer is -123", 0),
        ("The answer is 12", 0),
        ("The answer is -12. The answer is 7", 0),  # two answers are wrong
        ("I do not know", 0),
        ("-12", 0),
        ("", 0),
    ],
)
def test_the_reward_reads_one_answer_from_the_last_turn(last_turn, score):
    elsewhere = "The answer is -12"
    assert compute_score("calculator", elsewhere, "-12", {"last_turn": last_turn}) == score


@pytest.mark.slow
def test_tokenizer_keeps_digits_single_and_prompts_short(task_folder):
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    assert [tokenizer.decode(token) for token in tokenizer.encode("(37*41)-9?")] == list("(37*41)-9?")
    messages = rows(task_folder, "sft")[0]["messages"]
    prompt = tokenizer.apply_chat_template(messages[:2], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(messages, return_dict=False)
    assert whole[: len(prompt)] == prompt
    assert tokenizer.decode(whole) == tokenizer.apply_chat_template(messages, tokenize=False)
    assert json.loads((task_folder / "task.json").read_text())["prompt_tokens"] <= 54


def test_model_is_tiny(task_folder):
    model = AutoModelForCausalLM.from_pretrained(task_folder / "model")
    assert model.num_parameters() == 460_544
    assert model.config.model_type == "qwen3"


def test_a_mixture_of_experts_uses_as_many_weights_per_token_as_a_dense_model(task_folder):
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    mixture, dense = (make_model(tokenizer, 0, family) for family in ("qwen3_moe", "qwen3"))
    assert mixture.num_parameters() == 756_480
    assert mixture.config.num_experts > mixture.config.num_experts_per_tok
    active = mixture.config.num_experts_per_tok * mixture.config.moe_intermediate_size
    assert active == dense.config.intermediate_size


def test_a_deepseek_model_has_latent_attention_and_groups_of_experts(task_folder):
    config = make_model(AutoTokenizer.from_pretrained(task_folder / "model"), 0, "deepseek_v3").config
    assert (config.kv_lora_rank, config.n_shared_experts, config.first_k_dense_replace) == (32, 1, 1)
    assert config.num_experts_per_tok == 2 * config.topk_group  # else Megatron would rate the groups differently


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes(make_task, task_folder, tmp_path):
    make_task(tmp_path / "again", seed=0)
    again = tmp_path / "again"
    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    assert len(files) >= 9
    for file in files:
        assert (again / file).read_bytes() == (task_folder / file).read_bytes(), file
