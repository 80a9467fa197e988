"""`agentrl data check`: what it finds in rows, lengths, tools and rewards; its exit status, its two forms."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from agentrl.cli import data_reward
from agentrl.cli.data_probe import Checked
from agentrl.cli.data_view import print_checked
from agentrl.cli.main import main
from agentrl.config.data import DataConfig
from agentrl.data.inspection import inspect, normalised
from agentrl.data.rows import open_rows


def row(prompt, truth="1", **columns):
    return {"prompt": prompt, "ground_truth": truth, "data_source": "openai/gsm8k", **columns}


def write(path, *rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(path)


@pytest.fixture
def check(capsys):
    def run(*words):
        status = main(["data", "check", "--json", *words])
        said = capsys.readouterr()
        return status, json.loads(said.out) if status < 2 else said.err

    return run


def found(document, split="train", kind="problems"):
    return {each["kind"]: (each["count"], each["examples"][0][1]) for each in document[split][kind]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tokenizer for which a word is a token, and the template adds two."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1, "ask": 2, "answer": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    turn = "{{ message.role }} {{ message.content }} <end> "
    tokenizer.chat_template = "{% for message in messages %}" + turn + "{% endfor %}"
    tokenizer.chat_template += "{% if add_generation_prompt %}assistant {% endif %}"
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_good_rows_pass_and_are_described(tmp_path, check):
    file = write(tmp_path / "a.jsonl", row("one"), row("two", level=3), row("three", level=None))
    status, document = check(file)
    assert (status, document["problems"]) == (0, 0)
    assert document["train"]["rows"] == 3
    assert document["train"]["columns"]["level"] == {"whole number": 1}
    assert document["train"]["data_sources"] == {"openai/gsm8k": 3}
    assert document["train"]["probed_by_reward"] == 3
    assert document["train"]["tokens"] is None


def test_every_bad_row_is_counted_and_the_first_are_named(tmp_path, check):
    file = write(
        tmp_path / "a.jsonl", row("good"), row(" "), {"promt": "x"}, row(3), row("x", extra_info="{"), row("z")
    )
    status, document = check(file)
    (problem,) = document["train"]["problems"]
    assert (status, problem["kind"], problem["count"]) == (1, "rows that cannot be read", 4)
    assert [where for where, _ in problem["examples"]] == [f"{file} row {at} (line {at + 1})" for at in (1, 2, 3)]
    assert problem["examples"][0][1] == "field 'prompt': expected a prompt, got empty text"


def test_duplicates_leaks_and_other_answers(tmp_path, check):
    rows = [row("2+3 apples?", "5"), row("2-3 apples?", "-1"), row("How many?", "1")]
    more = [row("2+3 apples?", "5"), row(" 2+3  APPLES", "5"), row("How many?", "2")]
    train = write(tmp_path / "a.jsonl", *rows, *more)
    val = write(tmp_path / "b.jsonl", row("new"), row("2-3 apples?", "-1"), row("how many"))
    status, document = check(train, "--val", val)
    assert status == 1
    assert found(document) == {
        "repeated rows": (1, f"as {train} row 0 (line 1)"),
        "repeated rows with another answer": (1, f"as {train} row 2 (line 3)"),
    }
    assert found(document, kind="notes") == {
        "repeated rows, case, blanks and closing marks aside": (1, f"as {train} row 0 (line 1)")
    }
    assert [(each["kind"], each["count"]) for each in document["leaks"]] == [
        ("rows that training holds", 1),
        ("rows that training holds, case, blanks and closing marks aside", 1),
    ]
    assert document["val"]["problems"] == []


def test_rows_that_no_reward_can_score(tmp_path, check):
    rows = [row("a"), row("b", data_source="gsm9k"), row("c", "seven"), row("d", None), row("e", None)]
    status, document = check(write(tmp_path / "a.jsonl", *rows))
    problems = found(document)
    assert status == 1
    assert problems["rows that no reward scores"][0] == 1
    assert "data_source 'gsm9k' (did you mean 'gsm8k'?)" in problems["rows that no reward scores"][1]
    assert problems["rows whose ground truth the reward refuses"][0] == 3
    assert document["train"]["without_ground_truth"] == 2


def test_a_reward_of_ones_own_is_shown_an_empty_answer(tmp_path, check):
    (tmp_path / "mine.py").write_text(
        "def score(solution_str, ground_truth, extra_info):\n"
        "    assert solution_str == '' and extra_info['num_turns'] == 0\n"
        "    return float(len(ground_truth))\n"
    )
    file = write(tmp_path / "a.jsonl", row("a", data_source="mine"), row("b", 3, data_source="mine"))
    status, document = check(file, "--reward", f"{tmp_path}/mine.py:score")
    count, why = found(document)["rows whose ground truth the reward refuses"]
    assert (status, count) == (1, 1)
    assert "TypeError: object of type 'int' has no len()" in why
    assert check(file, "--reward", "exact_match")[0] == 0
    assert check(file, "--reward", "none")[1]["train"]["probed_by_reward"] is None


def test_lengths_are_those_of_the_models_template(tmp_path, check, model):
    file = write(tmp_path / "a.jsonl", *(row("word " * length + str(length)) for length in range(1, 41)))
    status, document = check(file, "--model", model, "data.max_prompt_length=34")
    tokens = document["train"]["tokens"]
    assert (tokens["min"], tokens["p50"], tokens["max"], tokens["limit"]) == (5, 25, 44, 34)
    assert found(document)["rows longer than 34 tokens"][0] == 10
    assert status == 1
    status, document = check(file, "--model", model, "data.max_prompt_length=34", "data.filter_overlong_prompts=true")
    assert status == 0
    assert found(document, kind="notes")["rows longer than 34 tokens"] == (10, "35 tokens")


def test_a_row_that_names_an_unknown_agent_loop_is_told_with_a_model(tmp_path, check, model):
    file = write(tmp_path / "a.jsonl", row("a"), row("b", agent_name="tool_agnet"))
    assert check(file)[0] == 0
    status, document = check(file, "--model", model)
    count, why = found(document)["rows that the template or the tools refuse"]
    assert (status, count) == (1, 1)
    assert "did you mean 'tool_agent'?" in why


def test_tools_that_rows_name_are_listed(tmp_path, check):
    tools = {"calculator": {"create_kwargs": {}}}
    _, document = check(write(tmp_path / "a.jsonl", row("a", tools_kwargs=tools), row("b")))
    assert document["train"]["tools"] == {"calculator": 1}


@pytest.mark.parametrize(
    ("rows", "kind", "longest"),
    [
        (
            [{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}],
            "conversations",
            7,
        ),
        ([{"prompt": "a b", "chosen": "c", "rejected": "c d e"}], "pairs", 9),
    ],
)
def test_conversations_and_pairs(tmp_path, check, model, rows, kind, longest):
    file = write(tmp_path / "a.jsonl", *rows, *rows)
    status, document = check(file, "--model", model)
    assert (status, document["train"]["kind"], document["train"]["tokens"]["max"]) == (1, kind, longest)
    assert found(document)["repeated rows"][0] == 1
    assert document["train"]["tokens"]["limit"] == 2048


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give the files to check: agentrl data check FILE..."),
        (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["data.max_promt_length=3"], "unknown key 'data.max_promt_length': did you mean 'data.max_prompt_length'?"),
    ],
)
def test_mistakes_are_one_line_and_status_2(check, words, expected):
    status, said = check(*words)
    assert status == 2
    assert expected in said
    assert len(said.splitlines()) == 1


def test_reading_goes_on_after_lines_that_are_no_rows(tmp_path, check):
    file = tmp_path / "a.jsonl"
    deep = "[" * 100_000
    file.write_text(f"{{\n{json.dumps(row('a'))}\n[1]\n{deep}\n{json.dumps(row('b', None))}\n")
    _, document = check(str(file))
    unreadable = next(each for each in document["train"]["problems"] if "cannot be read" in each["kind"])
    assert unreadable["count"] == 3
    assert [where.partition("row ")[2] for where, _ in unreadable["examples"]] == [
        f"{i} (line {i + 1})" for i in (0, 2, 3)
    ]
    assert unreadable["examples"][0][1].startswith("not JSON: ")
    assert found(document)["rows whose ground truth the reward refuses"][0] == 1


def test_files_without_a_row_are_named(tmp_path, check):
    empty, noise = tmp_path / "empty.jsonl", tmp_path / "noise.jsonl"
    empty.touch()
    noise.write_bytes(b"\x80\n\x81")
    assert "empty.jsonl: no rows to read" in check(str(empty))[1]
    assert "noise.jsonl row 0 (line 1): not JSON" in check(str(noise))[1]


def test_tests_of_code_are_read_without_a_sandbox(tmp_path, check):
    rows = [row(str(i), truth, data_source="code") for i, truth in enumerate(("assert 1", '{"inputs": [', None))]
    _, document = check(write(tmp_path / "a.jsonl", *rows), "reward.sandbox_fusion.url=http://there")
    assert found(document)["rows whose ground truth the reward refuses"][0] == 2


def test_a_refusal_names_its_own_row(tmp_path, check):
    _, document = check(write(tmp_path / "a.jsonl", row("a", "x"), row("b", "x")))
    refused = next(each for each in document["train"]["problems"] if "refuses" in each["kind"])
    assert ["row 0)" in refused["examples"][0][1], "row 1)" in refused["examples"][1][1]] == [True, True]


def test_a_file_whose_name_looks_like_an_override_is_a_file(tmp_path, check, monkeypatch):
    (tmp_path / "part=1").mkdir()
    write(tmp_path / "part=1" / "a.jsonl", row("a"))
    monkeypatch.chdir(tmp_path)
    assert check("part=1/a.jsonl")[0] == 0


def test_the_terminal_shows_tables_a_histogram_and_what_is_wrong(tmp_path):
    file = write(tmp_path / "a.jsonl", row("a"), row(" "))
    looked_at = inspect([open_rows(file)], DataConfig())
    checked = Checked(looked_at, [looked_at.unreadable], [], [3, 3, 3, 30], 20, 1)
    out = io.StringIO()
    print_checked({"train": checked}, [], Console(file=out, width=80))
    text = out.getvalue()
    assert "train: 2 tasks" in text
    assert "tokens: min 3, p50 3, p90 30, p95 30, p99 30, max 30; 1 longer than 20" in text
    assert "3 to 5        3" in text
    assert "█" * 40 in text
    assert "train: rows that cannot be read: 1" in text
    assert max(map(len, text.splitlines()[:20])) <= 80
    out.truncate(0)
    print_checked({"train": Checked(looked_at)}, [], Console(file=out, width=80))
    assert "no problems found" in out.getvalue()


def test_of_many_ground_truths_those_of_most_rows_are_shown_to_the_reward(tmp_path, check, monkeypatch):
    monkeypatch.setattr(data_reward, "MOST_PROBED", 1)
    file = write(tmp_path / "a.jsonl", row("a"), row("b", None), row("c", None))
    _, document = check(file)
    assert document["train"]["probed_by_reward"] == 2
    assert found(document)["rows whose ground truth the reward refuses"][0] == 2


def test_signs_are_no_matter_of_style():
    assert normalised(" What  is\n2+3? ") == normalised("what is 2+3.")
    assert normalised("what is 2-3") != normalised("what is 2+3")


def test_a_class_that_asks_for_a_tokenizer_is_told_of_the_model(tmp_path, check):
    (tmp_path / "mine.py").write_text("class Mine:\n    def __init__(self, tokenizer): ...\n")
    status, said = check("x", f"data.custom_cls.path={tmp_path / 'mine.py'}", "data.custom_cls.name=Mine")
    assert status == 2
    assert "the class asks for a tokenizer: give --model" in said
