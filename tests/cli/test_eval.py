"""`agentrl eval` on a model, on saved rollouts and on texts; and verl's main_eval."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agentrl.cli.eval.responses import main as main_eval
from agentrl.cli.main import main
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore

SCRIPT = """
def reply(context):
    return str(len(context) % 10)
"""
REWARD = """
import asyncio

def compute_score(data_source, solution_str, ground_truth):
    return float(solution_str.strip().startswith(ground_truth))

def always(solution_str):
    return {"score": 2.0, "style": 0.5}

def last_turn(ground_truth, extra_info):
    return float(extra_info["last_turn"].strip().startswith(ground_truth))

async def raises(data_source, extra_info):  # row 2 before row 1; row 0 not at all
    await asyncio.sleep(0.0 if extra_info["index"] == 2 else 0.2)
    if extra_info["index"] > 0:
        raise ValueError("no")
    return 0.0
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": "a" * i, "ground_truth": str(i % 3), "data_source": "ab"[i % 2]} for i in range(1, 7)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def evaluate(task_folder: Path, *overrides: str) -> int:
    given = [f"model.path={task_folder}/model", "data.val_files=[rows.jsonl]", "trainer.default_local_dir=run"]
    engine = ["rollout.engine=scripted", "rollout.script_path=script.py:reply"]
    reward = "reward.custom_reward_function.path=reward.py"
    return main(["eval", *given, *engine, reward, "rollout.val_kwargs={n: 2, do_sample: true}", *overrides])


TO = ("--json", "x.json")


def figures(file: str = "run/eval.json") -> dict:
    return json.loads(Path(file).read_text())


def test_saved_evaluation_reads_back_equal(task_folder, here, capsys):
    assert evaluate(task_folder) == 0
    live = figures()
    assert {"val/success", "val/reward/mean", "val/num_tasks", "val/tool_calls/share"} <= live.keys()
    assert live["overall"]["num_rollouts"] == 12
    assert list(live["sources"]) == ["a", "b"]
    assert open_saved("run").split == "val"
    assert TrajectoryStore(Path("run/trajectories/val")).steps == [0]
    out = capsys.readouterr().out
    assert "rollouts 12/12" in out
    assert "all results: run/eval.json" in out
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert main(["eval", "--from", "run", "--json", "again.json"]) == 0
    assert figures("again.json") == live
    assert main(["eval", "--from", "run", "--reward", "reward.py:always"]) == 0
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_second_evaluation_replaces_the_first(task_folder, here):
    for num_rows in (6, 2):
        assert evaluate(task_folder, f"data.val_max_samples={num_rows}") == 0
    assert figures()["val/num_tasks"] == 2
    assert len(list(TrajectoryStore(Path("run/trajectories/val")).scan())) == 4


def test_validation_of_a_run_is_not_overwritten(task_folder, here, capsys):
    Path("run").mkdir()
    Path("run/config.yaml").write_text("{}")
    assert evaluate(task_folder) == 0
    assert "'run' is a training run: these rollouts are not saved" in capsys.readouterr().out
    assert not Path("run/trajectories").exists()
    assert figures()["val/num_tasks"] == 6


def test_saved_rollouts_are_scored_by_another_reward(task_folder, here, capsys):
    assert evaluate(task_folder) == 0
    before = figures()
    assert main(["eval", "--from", "run@0", "--reward", "reward.py:always", "reward.success_threshold=2", *TO]) == 0
    assert "rescored: 12 rollouts scored with reward.py:always" in capsys.readouterr().out
    after = figures("x.json")
    assert (after["val/reward/mean"], after["val/success"]) == (2.0, 1.0)
    assert main(["eval", "--from", "run", "--reward", "reward.py:compute_score", *TO]) == 0
    assert figures("x.json")["overall"] == before["overall"]


def test_last_of_several_validations_is_read(task_folder, here, capsys):
    assert evaluate(task_folder) == 0
    store = TrajectoryStore(Path("run/trajectories/val"), provenance=open_saved("run").provenance, split="val")
    first = store.groups(0)
    for group in first:
        group.rollouts[0].rewards["score"] = 1.0
    store.write(20, first)
    assert main(["eval", "--from", "run", *TO]) == 0
    assert "using the last of 2 validations, step 20" in capsys.readouterr().out
    last = figures("x.json")["val/reward/mean"]
    assert main(["eval", "--from", "run@0", *TO]) == 0
    assert figures("x.json")["val/reward/mean"] < last


def write_responses(**columns: object) -> None:
    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": "?"}],
            "reward_model": {"style": "rule", "ground_truth": truth},
            "responses": responses,
            **columns,
        }
        for source, truth, responses in (("a", "1", ["1", "2", "1"]), ("a", "2", ["1", "1", "1"]), ("b", "3", ["3"]))
    ]
    pq.write_table(pa.Table.from_pylist(rows), "out.parquet")


def test_texts_are_scored_as_verl_scores_them(here, capsys):
    write_responses()
    said = ["data.path=out.parquet", "data.prompt_key=prompt", "data.response_key=responses"]
    columns = ["data.data_source_key=data_source", "data.reward_model_key=reward_model"]
    reward = ["custom_reward_function.path=reward.py", "custom_reward_function.name=compute_score"]
    assert main_eval([*said, *columns, *reward]) == 0
    values = figures("out.eval.json")
    assert values["test_score/a"] == pytest.approx((2 / 3 + 0) / 2)
    assert values["test_score/b"] == 1.0
    assert values["overall"]["pass_at_k"]["1"]["value"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert values["sources"]["a"]["pass_at_k"]["2"]["value"] == pytest.approx(0.5)
    out = capsys.readouterr().out
    assert "test_score/a: 0.333333" in out
    assert "tool calls" not in out
    for function in ("compute_score", "last_turn"):
        command = ["eval", "--responses", "out.parquet", "--reward", f"reward.py:{function}", "--json", "x.json"]
        assert main(command) == 0
        assert figures("x.json") == values


REWARDS = """
from agentrl.rewards.reward_view import RolloutInfo

UNKNOWN = ["completion_ids", "response_lengths", "token_ids"]


def of_everything(data_source, solution_str, ground_truth, extra_info):
    assert {key for key in RolloutInfo.__annotations__ if key not in extra_info} == set(UNKNOWN)
    assert extra_info["conversation"][-1] == {"role": "assistant", "content": solution_str}
    assert (extra_info["num_tool_calls"], extra_info["tool_rewards"], extra_info["num_turns"]) == (0, [], 1)
    return float(extra_info["tool_outcomes"].count("ok")) + (extra_info["stop"] == "finished")


def of_tokens(data_source, solution_str, ground_truth, extra_info):
    return len(extra_info["token_ids"])


def own_mistake(data_source, solution_str, ground_truth, extra_info):
    return extra_info["nothing"]
"""


def test_rewards_of_texts_find_what_is_known_of_rollouts(here, capsys):
    Path("info.py").write_text(REWARDS)
    write_responses()
    command = ["eval", "--responses", "out.parquet", "--json", "x.json", "--reward"]
    assert main([*command, "info.py:of_everything"]) == 0
    assert figures("x.json")["val/reward/mean"] == 1.0
    write_responses(tool_outcomes=["ok", "ok"])  # the file now records tool outcomes
    assert main([*command, "info.py:of_everything"]) == 0
    assert figures("x.json")["val/reward/mean"] == 3.0
    capsys.readouterr()
    assert main([*command, "info.py:of_tokens"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "texts have no tokens; only saved rollouts have 'token_ids': agentrl eval --from RUN" in line
    assert main([*command, "info.py:own_mistake"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError: 'nothing'" in line
    assert "texts have no tokens" not in line


def test_generated_rows_load_in_main_eval(task_folder, here):
    model = [f"model.path={task_folder}/model", "rollout.engine=scripted", "rollout.script_path=script.py:reply"]
    files = ["data.train_files=[rows.jsonl]", "data.output_path=out.parquet", "trainer.default_local_dir=gen"]
    reward = "reward.custom_reward_function.path=reward.py"
    assert main(["generate", *model, *files, reward, "rollout.n=3"]) == 0
    assert main(["eval", "--from", "gen", *TO]) == 0
    assert main_eval(["data.path=out.parquet", "custom_reward_function.path=reward.py"]) == 0
    live, texts = figures("x.json"), figures("out.eval.json")
    for name in ("reward", "success", "pass_at_k", "pass_hat_k", "num_rollouts"):
        assert texts["overall"][name] == live["overall"][name]
    assert texts["sources"].keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--from", "gone"], "there is no 'gone'"),
        (["--from", "x", "--responses", "y"], "give one of them"),
        (["--reward", "reward.py:always"], "--reward needs --from RUN or --responses FILE"),
        (["--responses", "gone.parquet"], "gone.parquet: no such file"),
        (["--responses", "out.parquet", "--response-key", "response"], "did you mean 'responses'?"),
        (["--responses", "out.parquet"], "out.parquet row 0: there is no built-in reward for data_source 'a'"),
        (["--responses", "out.parquet", "--reward", "reward.py:alway"], "'alway'"),
        (
            ["--responses", "out.parquet", "--reward", "reward.py:raises"],
            "reward 'raises' (data source 'a', row 1)",
        ),
        (["--responses", "numbers.parquet", "--reward", "reward.py"], "expected a text or a list of texts, got 3"),
        (["--responses", "out.parquet", "reward.nam=x"], "did you mean 'reward.name'?"),
        (
            ["--responses", "out.parquet", "--reward", "reward.py", "--json", "reward.py/x"],
            "cannot write 'reward.py/x'",
        ),
    ],
)
def test_mistakes_are_one_line(here, capsys, arguments, complaint):
    write_responses(responses=[3])
    Path("out.parquet").rename("numbers.parquet")
    write_responses()
    assert main(["eval", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert complaint in said


@pytest.mark.parametrize("value", [None, 0, {}, [], False])
def test_response_that_is_not_text_is_refused(here, capsys, value):
    """`[]` is an invalid text in a row with texts; as the complete column it means a row without texts."""
    row = {"prompt": "?", "ground_truth": "1", "data_source": "a"}
    lines = [{**row, "responses": ["1"]}, {**row, "responses": ["a", value, ""]}]
    Path("out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["eval", "--responses", "out.jsonl", "--reward", "reward.py:compute_score"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "out.jsonl row 1 (line 2): field 'responses', position 1: expected a text" in said
    assert said.endswith(f"got {value!r}")


def test_empty_response_is_evaluated(here):
    rows = [{"prompt": "?", "ground_truth": "1", "data_source": "a", "responses": ["1", "", "1", ""]}]
    Path("out.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert main(["eval", "--responses", "out.jsonl", "--reward", "reward.py:compute_score"]) == 0
    assert figures("out.eval.json")["overall"]["num_rollouts"] == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "'data.path' is missing"),
        (["data.paht=x"], "did you mean 'data.path'?"),
        (["data.path=out.parquet", "data.data_source_key=source"], "name the column data_source"),
        (["data.path=out.parquet", "custom_reward_function.path=gone.py"], "gone.py"),
        (["data.path=out.parquet", "data.prompt_key=question"], "field 'question'"),
    ],
)
def test_mistakes_in_verls_words_are_one_line(here, capsys, arguments, complaint):
    write_responses()
    assert main_eval(arguments) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert complaint in said


def test_a_row_without_texts_is_counted(here, capsys):
    write_responses()
    table = pq.read_table("out.parquet").to_pylist()
    table[1]["responses"] = []
    pq.write_table(pa.Table.from_pylist(table), "out.parquet")
    assert main(["eval", "--responses", "out.parquet", "--reward", "reward.py"]) == 0
    assert "tasks without a scored rollout: 1 of 3" in capsys.readouterr().out
    assert figures("out.eval.json")["test_score/a"] == pytest.approx(2 / 3)
