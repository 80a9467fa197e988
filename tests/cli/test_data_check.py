"""`agentrl data check`: its findings in rows, lengths, tools and rewards; exit status; both output forms."""

from __future__ import annotations

import io
import json

import pytest
from folder_builders import make_folder
from rich.console import Console
from transformers import PreTrainedTokenizerFast

from agentrl.cli.data import reward as data_reward
from agentrl.cli.data.probe import Checked
from agentrl.cli.data.table import print_checked
from agentrl.cli.main import main
from agentrl.config.data import DataConfig
from agentrl.data.inspection import inspect, normalised
from agentrl.data.rows.open import open_rows


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
    """A tokenizer with one token per word, and a template that adds two tokens."""
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
        "repeated rows": (1, f"same as {train} row 0 (line 1)"),
        "repeated rows with a different answer": (1, f"same as {train} row 2 (line 3)"),
    }
    assert found(document, kind="notes") == {
        "repeated rows, ignoring case, spaces and final punctuation": (1, f"same as {train} row 0 (line 1)")
    }
    assert [(each["kind"], each["count"]) for each in document["leaks"]] == [
        ("rows also in the training files", 1),
        ("rows also in the training files, ignoring case, spaces and final punctuation", 1),
    ]
    assert document["val"]["problems"] == []


def in_world(prompt, truth, shelf, query=None, **create):
    kwargs = {"find_shelf": {"create_kwargs": {"shelf": shelf, **create}}}
    return row(prompt, truth, tools_kwargs=kwargs, interaction_kwargs={"name": "user", "query": query})


def test_rows_whose_tools_or_simulated_user_differ_are_not_repeated(tmp_path, check):
    rows = [in_world("Where?", "1", 1), in_world("Where?", "2", 2, aisle=2), in_world("a", "1", 1, "x")]
    status, document = check(write(tmp_path / "a.jsonl", *rows, in_world("a", "1", 1, "y"), in_world("A", "1", 1, "z")))
    assert (status, document["problems"]) == (0, 0)
    assert list(found(document, kind="notes")) == [
        "rows with tools_kwargs, but no tools are configured",
        "rows with interaction_kwargs, but no simulated user is configured",
    ]


def test_conflicting_answers_are_found_also_if_tools_get_the_answer(tmp_path, check):
    train = write(tmp_path / "a.jsonl", in_world("2+3?", "5", 5), in_world("2+3?", "6", 6), in_world("2+3?", "5", 5))
    _, document = check(train, "--val", train)
    assert {kind: count for kind, (count, _) in found(document).items()} == {
        "repeated rows": 1,
        "repeated rows with a different answer": 1,
    }
    assert document["leaks"][0]["count"] == 3


def test_rows_that_no_reward_can_score(tmp_path, check):
    rows = [row("a"), row("b", data_source="gsm9k"), row("c", "seven"), row("d", None), row("e", None)]
    status, document = check(write(tmp_path / "a.jsonl", *rows))
    problems = found(document)
    assert status == 1
    assert problems["rows without a reward for their data_source"][0] == 1
    assert "data_source 'gsm9k' (did you mean 'gsm8k'?)" in problems["rows without a reward for their data_source"][1]
    assert problems["rows whose ground truth the reward cannot use"][0] == 3
    assert document["train"]["without_ground_truth"] == 2


def test_data_check_probes_a_custom_reward_with_an_empty_answer(tmp_path, check):
    (tmp_path / "mine.py").write_text(
        "def score(solution_str, ground_truth, extra_info):\n"
        "    assert solution_str == '' and extra_info['num_turns'] == 0\n"
        "    return float(len(ground_truth))\n"
    )
    file = write(tmp_path / "a.jsonl", row("a", data_source="mine"), row("b", 3, data_source="mine"))
    status, document = check(file, "--reward", f"{tmp_path}/mine.py:score")
    count, why = found(document)["rows whose ground truth the reward cannot use"]
    assert (status, count) == (1, 1)
    assert "TypeError: object of type 'int' has no len()" in why
    assert check(file, "--reward", "exact_match")[0] == 0
    assert check(file, "--reward", "none")[1]["train"]["probed_by_reward"] is None


def test_lengths_include_the_models_template(tmp_path, check, model):
    file = write(tmp_path / "a.jsonl", *(row("word " * length + str(length)) for length in range(1, 41)))
    status, document = check(file, "--model", model, "data.max_prompt_length=34")
    tokens = document["train"]["tokens"]
    assert (tokens["min"], tokens["p50"], tokens["max"], tokens["limit"]) == (5, 25, 44, 34)
    assert found(document)["rows longer than 34 tokens"][0] == 10
    assert status == 1
    status, document = check(file, "--model", model, "data.max_prompt_length=34", "data.filter_overlong_prompts=true")
    assert status == 0
    assert found(document, kind="notes")["rows longer than 34 tokens"] == (10, "35 tokens")


REFUSED = "rows that fail with the chat template, the tools or the agent loop"
SHELVES = """
from agentrl.tools.base import BaseTool, ToolResponse

class FindShelf(BaseTool):
    async def create(self, instance_id=None, *, shelf):
        return instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse("here"), 0.0, {}
"""
SCHEMA = (
    "{type: function, function: {name: find_shelf, description: Find., parameters: {type: object, properties: {}}}}"
)


@pytest.fixture
def shelves(tmp_path):
    """Arguments for a tool whose `create` needs a shelf, and for a simulated user."""
    (tmp_path / "shelves.py").write_text(SHELVES)
    tools, users = tmp_path / "tools.yaml", tmp_path / "users.yaml"
    tools.write_text(f"tools: [{{class_name: '{tmp_path}/shelves.py:FindShelf', config: {{}}, tool_schema: {SCHEMA}}}]")
    users.write_text("interaction: [{name: customer, class_name: agentrl.interactions.gsm8k.Gsm8kInteraction}]")
    paths = {"tool_config_path": tools, "interaction_config_path": users}
    return [f"rollout.multi_turn.{key}={path}" for key, path in paths.items()]


def shelf(kwargs, user="customer", **columns):
    return row(
        "a", tools_kwargs={"find_shelf": kwargs}, interaction_kwargs={"name": user, "ground_truth": 1}, **columns
    )


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (shelf({"create_kwargs": {"shelf": "A"}}, agent_name="tool_agnet"), "did you mean 'tool_agent'?"),
        (shelf({"create_kwargs": {"shelv": "A"}}), "does not accept 'shelv': did you mean 'shelf'?"),
        (shelf({"create_kwargs": {}}), "create of tool 'find_shelf' needs 'shelf'"),
        (shelf({"create_kwarg": {}}), "unknown key 'create_kwarg': did you mean 'create_kwargs'?"),
        (row("a", tools_kwargs={"find_shelves": {}}), "needs 'shelf'"),
        (
            shelf({"create_kwargs": {"shelf": "A"}}, "custommer"),
            "interaction 'custommer': did you mean 'customer'?",
        ),
        (
            shelf({"create_kwargs": {"shelf": 1}}, extra_info={"tool_selection": ["x"]}),
            "row selects an unknown tool 'x'",
        ),
    ],
)
def test_names_and_arguments_in_rows_are_checked_without_a_model_too(tmp_path, check, model, shelves, bad, complaint):
    good = shelf({"create_kwargs": {"shelf": "A"}}, extra_info={})
    file = write(tmp_path / "a.jsonl", good | {"prompt": "b"}, bad)
    words = [file, *shelves, "rollout.agent.default_agent_loop=react_agent"]
    for with_model in ([], ["--model", model, "data.max_prompt_length=300"]):
        status, document = check(*words, *with_model)
        finding = next(each for each in document["train"]["problems"] if each["kind"] == REFUSED)
        assert (status, finding["count"], finding["examples"][0][0]) == (1, 1, f"{file} row 1 (line 2)")
        assert complaint in finding["examples"][0][1]


def test_prompts_are_measured_with_the_tools_they_are_offered(tmp_path, check, model, shelves):
    file = write(tmp_path / "a.jsonl", shelf({"create_kwargs": {"shelf": "A"}}))
    react = ["--model", model, *shelves, "rollout.agent.default_agent_loop=react_agent"]
    lengths = [check(file, *words)[1]["train"]["tokens"]["max"] for words in (["--model", model], react)]
    assert lengths[1] > lengths[0] + 30


def test_tools_that_no_agent_loop_calls_are_a_problem(tmp_path, check, shelves):
    file = write(tmp_path / "a.jsonl", shelf({"create_kwargs": {"shelf": "A"}}))
    status, document = check(file, *shelves, "rollout.agent.default_agent_loop=single_turn_agent")
    count, why = found(document)["settings that fail with these rows"]
    assert (status, count) == (1, 1)
    assert "tools are configured, but agent loop 'single_turn_agent' calls none" in why


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "no files to check: give FILE..."),
        (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (
            ["data.max_promt_length=3"],
            "unknown key 'data.max_promt_length': did you mean 'data.max_prompt_length'?",
        ),
    ],
)
def test_mistakes_are_one_line_and_status_2(check, words, expected):
    status, said = check(*words)
    assert status == 2
    assert expected in said
    assert len(said.splitlines()) == 1


def test_reading_continues_after_invalid_lines(tmp_path, check):
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
    assert found(document)["rows whose ground truth the reward cannot use"][0] == 1


def test_files_without_a_row_are_named(tmp_path, check):
    empty, noise = tmp_path / "empty.jsonl", tmp_path / "noise.jsonl"
    empty.touch()
    noise.write_bytes(b"\x80\n\x81")
    assert "empty.jsonl: no rows to read" in check(str(empty))[1]
    assert "noise.jsonl row 0 (line 1): not JSON" in check(str(noise))[1]


def test_tests_of_code_are_read_without_a_sandbox(tmp_path, check):
    rows = [row(str(i), truth, data_source="code") for i, truth in enumerate(("assert 1", '{"inputs": [', None))]
    _, document = check(write(tmp_path / "a.jsonl", *rows), "reward.sandbox_fusion.url=http://there")
    assert found(document)["rows whose ground truth the reward cannot use"][0] == 2


def test_refusal_names_the_row(tmp_path, check):
    _, document = check(write(tmp_path / "a.jsonl", row("a", "x"), row("b", "x")))
    refused = next(each for each in document["train"]["problems"] if "cannot use" in each["kind"])
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


def test_most_common_ground_truths_are_tried_with_the_reward(tmp_path, check, monkeypatch):
    monkeypatch.setattr(data_reward, "MAX_PROBED", 1)
    file = write(tmp_path / "a.jsonl", row("a"), row("b", None), row("c", None))
    _, document = check(file)
    assert document["train"]["probed_by_reward"] == 2
    assert found(document)["rows whose ground truth the reward cannot use"][0] == 2


def test_normalised_text_keeps_arithmetic_signs():
    assert normalised(" What  is\n2+3? ") == normalised("what is 2+3.")
    assert normalised("what is 2-3") != normalised("what is 2+3")


def test_every_task_folder_that_cannot_run_is_listed(tmp_path, check):
    for at in range(12):
        dockerfile = "FROM debian\nWORKDIR /app\n" + "RUN apt-get update\n" * (at % 4 > 0)
        make_folder(tmp_path / "tasks" / f"t{at:02}", instruction=f"task {at}", dockerfile=dockerfile)
    status, document = check(str(tmp_path / "tasks"))
    (problem,) = document["train"]["problems"]
    assert (status, problem["count"], len(problem["examples"])) == (1, 9, 9)
    where, why = problem["examples"][0]
    assert where == str(tmp_path / "tasks" / "t01")
    assert "cannot run in a sandbox of kind 'local'" in why
    assert "line 3: RUN: 'apt-get' needs an image" in why
    tools = tmp_path / "tools.yaml"
    tools.write_text("tools:\n- {name: bash, sandbox: docker}\n")
    assert check(str(tmp_path / "tasks"), f"rollout.multi_turn.tool_config_path={tools}")[0] == 0
    tools.write_text(f"tools:\n- {{name: bash, sandbox: {{kind: local, root: {tmp_path}/none}}}}\n")
    _, document = check(str(tmp_path / "tasks"), f"rollout.multi_turn.tool_config_path={tools}")
    (problem,) = document["train"]["problems"]
    assert (problem["count"], "of the sandbox: " in problem["examples"][0][1]) == (12, True)


def test_all_task_folders_that_are_not_valid_are_named(tmp_path, check, capsys):
    make_folder(tmp_path / "a", settings="x =")
    make_folder(tmp_path / "b", test=None)
    assert main(["data", "check", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/a/task.toml: not TOML" in said
    assert f"{tmp_path}/b: no file 'tests/test.sh'" in said


def test_dataset_class_gets_the_models_tokenizer(tmp_path, check):
    (tmp_path / "mine.py").write_text("class Mine:\n    def __init__(self, tokenizer): ...\n")
    status, said = check("x", f"data.custom_cls.path={tmp_path / 'mine.py'}", "data.custom_cls.name=Mine")
    assert status == 2
    assert "the class needs a tokenizer: give --model" in said
