"""`agentrl generate`: every row once, also after interruptions; with and without scores; as trajectories and rows."""

from __future__ import annotations

import io
import json
import os
import runpy
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from same_run import differences
from transformers import AutoTokenizer

from agentrl.cli.main import main
from agentrl.reporting.progress_bar import PlainProgress, rollout_progress
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Rollout, Stop

SCRIPT = """
def reply(context):
    return f"it is {len(context)}"
"""
REWARD = """
import os, signal
calls = iter(range(1, 1000))
def compute_score(data_source, solution_str, ground_truth):
    if next(calls) == int(os.environ.get("AT_CALL", 0)):
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    return float(len(solution_str) % 2)
"""
NUM_ROWS = 10


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "reward.py").write_text(REWARD)
    write_rows(tmp_path / "rows.jsonl")
    return tmp_path


def write_rows(file: Path, **columns: object) -> None:
    rows = [
        {"prompt": f"What is {i} + {i}?", "ground_truth": str(2 * i), "level": i, **columns} for i in range(NUM_ROWS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(task_folder: Path, *overrides: str) -> list[str]:
    """Arguments of a command that generates with random weights."""
    given = ["data.train_files=[rows.jsonl]", "data.train_batch_size=4", "rollout.n=2"]
    lengths = ["data.max_prompt_length=300", "data.max_response_length=8"]
    reward = "reward.custom_reward_function.path=reward.py"
    folder = "trainer.default_local_dir=run"
    model = f"model.path={task_folder}/model"
    return ["generate", model, "rollout.deterministic=true", reward, folder, *given, *lengths, *overrides]


def scripted(task_folder: Path, *overrides: str) -> list[str]:
    """The same command with scripted answers, which take no time."""
    engine = ["rollout.engine=scripted", "rollout.script_path=script.py:reply", "rollout.deterministic=false"]
    return words(task_folder, *engine, "data.max_response_length=64", *overrides)


RESUME = "trainer.resume_mode=auto"


def store(run: str = "run") -> TrajectoryStore:
    return TrajectoryStore(Path(run) / "trajectories/train")


def rows_by_file(run: str = "run") -> list[list[int]]:
    kept = store(run)
    return [[group.task.index for group in kept.groups(step)] for step in kept.steps]


@pytest.mark.slow
def test_generate_writes_every_row_once_in_order(task_folder, here, capsys):
    assert main(scripted(task_folder)) == 0
    assert rows_by_file() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    rollouts = [stored.rollout for stored in store().scan()]
    assert len(rollouts) == 2 * NUM_ROWS
    assert {rollout.rewards["score"] for rollout in rollouts} <= {0.0, 1.0}
    out = capsys.readouterr().out
    assert "rollouts 20/20" in out
    assert "20 rollouts of 10 tasks: run/trajectories/train" in out
    assert "step 1" not in out
    assert json.loads(Path("run/environment.json").read_text())["reproducible"]["promised"]
    assert main([*scripted(task_folder), RESUME]) == 0
    assert "already finished at step 3" in capsys.readouterr().out


@pytest.mark.slow
def test_generate_overrides_training_keys_but_not_an_explicit_shuffle(task_folder, here):
    training = ["trainer.total_training_steps=1", "trainer.total_epochs=7", "trainer.test_freq=2", "rollout.n=1"]
    assert main(scripted(task_folder, *training, "trainer.stop_when={metric: val/success, at_least: 1}")) == 0
    assert [len(rows) for rows in rows_by_file()] == [4, 4, 2]
    shuffled = ["data.shuffle=true", "trainer.default_local_dir=shuffled"]
    assert main(scripted(task_folder, *shuffled)) == 0
    order = [row for rows in rows_by_file("shuffled") for row in rows]
    assert sorted(order) == list(range(NUM_ROWS))
    assert order != sorted(order)


@pytest.mark.slow
def test_killed_in_the_middle_of_a_file_it_resumes_without_difference(task_folder, here, capsys):
    if not (pid := os.fork()):  # a fork: heavy modules are imported already
        os.environ.update(AT_CALL="11", SIGNAL=str(int(signal.SIGKILL)))
        main(words(task_folder))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert rows_by_file() == [[0, 1, 2, 3]]  # the eleventh rollout belongs to the second file
    assert main(words(task_folder, "trainer.default_local_dir=whole")) == 0
    capsys.readouterr()
    assert main([*words(task_folder), RESUME]) == 0
    out = capsys.readouterr().out
    assert "resuming at step 1" in out
    assert "rollouts 20/20" in out
    assert differences(Path("whole"), Path("run")) == []
    other = store().groups(3)
    other[0].rollouts[0].rewards["score"] += 1
    TrajectoryStore(Path("run/trajectories/train"), provenance=store().provenance(3)).write(3, other)
    assert "step-000003.parquet" in differences(Path("whole"), Path("run"))[0]


@pytest.fixture
def ctrl_c_is_heard_again():
    """An interrupted command ignores further signals until its process ends; the test process has to restore them."""
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
def test_ctrl_c_prints_how_to_resume(task_folder, here, capsys, monkeypatch, ctrl_c_is_heard_again):
    monkeypatch.setenv("AT_CALL", "11")
    monkeypatch.setenv("SIGNAL", str(int(signal.SIGINT)))
    assert main(scripted(task_folder)) == 130
    err = capsys.readouterr().err
    assert "agentrl train --resume run resumes from step 1" in err
    monkeypatch.delenv("AT_CALL")
    assert main(["train", "--resume", "run"]) == 0
    assert [len(rows) for rows in rows_by_file()] == [4, 4, 2]


def test_rows_come_back_with_their_responses(task_folder, here):
    rows = [{"prompt": f"{i}?", "data_source": "a", "reward_model": {"ground_truth": str(i)}} for i in range(3)]
    long = {"prompt": "long " * 200, "data_source": "a", "reward_model": {"ground_truth": "4"}}
    table = pa.Table.from_pylist([rows[0], long, *rows[1:]])
    pq.write_table(table, "rows.parquet")
    files = ["data.train_files=[rows.parquet]", "data.filter_overlong_prompts=true", "data.max_prompt_length=100"]
    assert main(scripted(task_folder, *files, "data.output_path=deep/out.parquet")) == 0
    written = pq.read_table("deep/out.parquet")
    assert written.drop_columns(["responses"]).equals(table)
    texts = written["responses"].to_pylist()
    assert [len(each) for each in texts] == [2, 0, 2, 2]  # the dropped row keeps its place
    tokenizer = AutoTokenizer.from_pretrained(task_folder / "model")
    said = [s.rollout.trajectories[0].segments[1].token_ids for s in store().scan(uid=store().groups(1)[0].uid)]
    assert texts[0] == [tokenizer.decode(ids, skip_special_tokens=True) for ids in said]
    assert texts[0][0].startswith("it is ")


def test_counting_rollouts_reads_no_other_columns(task_folder, here, capsys, monkeypatch):
    asked = []

    def scan(self, columns=None, **wanted):
        asked.append(columns)
        return original(self, columns=columns, **wanted)

    original = TrajectoryStore.scan
    monkeypatch.setattr(TrajectoryStore, "scan", scan)
    assert main(scripted(task_folder)) == 0
    assert "20 rollouts of 10 tasks" in capsys.readouterr().out
    assert asked == [["index", "infra_failed"], ("rewards",)]  # the second read is for the report


@pytest.mark.slow
def test_greedy_rollouts_repeat(task_folder, here):
    greedy = ["rollout.temperature=0", "rollout.n=1", "data.train_max_samples=2"]
    for run, seed in (("one", 1), ("two", 2)):
        more = [f"trainer.default_local_dir={run}", f"trainer.seed={seed}"]
        assert main(words(task_folder, *greedy, *more)) == 0
    tokens = [[list(s.rollout.trajectories[0].token_ids) for s in store(run).scan()] for run in ("one", "two")]
    assert tokens[0] == tokens[1]


@pytest.mark.slow
def test_rows_of_an_unknown_source_are_generated_without_score_on_request(task_folder, here, capsys):
    own = ["reward.custom_reward_function.path=null"]
    assert main(scripted(task_folder, *own)) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "rows.jsonl row 0 (line 1): there is no built-in reward for data_source 'unknown'" in said
    assert "`none` gives no score" in said
    assert main(scripted(task_folder, *own, "reward.name=none")) == 0
    assert [stored.rollout.rewards for stored in store().scan()] == [{}] * 20
    metrics = json.loads((here / "run/metrics.jsonl").read_text().splitlines()[0])
    assert "num_turns/mean" in metrics
    assert not [name for name in metrics if name.startswith(("reward/", "success", "groups/"))]
    assert main(["eval", "--from", "run"]) == 2
    assert "no rollout has a score: give --reward" in capsys.readouterr().err


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["rollout.nn=3"], "did you mean 'rollout.n'?"),
        (["data.train_files=[]"], "'data.train_files' must be given"),
        (["data.train_files=[empty.jsonl]"], "empty.jsonl: no rows to read"),
        (["data.train_files=[gone.jsonl]"], "did you mean 'rows.jsonl'"),
        (["data.max_prompt_length=2"], "data.max_prompt_length is 2"),
        (["rollout.temperature=0"], "'rollout.n' above 1 repeats the same greedy rollout"),
        (["rollout.temperature=0", "rollout.n=1", "rollout.top_p=0.9"], "'rollout.top_p' has no effect without"),
        (["rollout.temperature=-1"], "'rollout.temperature': input should be greater than or equal to 0"),
        (["data.output_path=out.json"], "'data.output_path' must name a Parquet file, not 'out.json'"),
        (["data.output_path=rows.jsonl/out.parquet"], "'data.output_path': cannot write 'rows.jsonl/out.parquet'"),
        (["data.output_path=out.parquet", "data.train_files=[mixed.jsonl]"], "have incompatible columns"),
        (
            ["data.output_path=out.parquet", "data.train_files=[bare.jsonl]"],
            "cannot write 'out.parquet': Cannot write",
        ),
        (["data.output_path=out.parquet", "data.train_files=[gone.parquet]"], "gone.parquet: no such file"),
        (["data.output_path=out.parquet", "data.train_files=[half.jsonl]"], "have incompatible columns"),
        (["data.dataset_weights=[1]"], "which uses each row once"),
        (["algorithm.name=sft", "rollout.n=1"], "'algorithm.name=sft' makes no rollouts"),
        (
            ["reward.custom_reward_function.path=raises.py"],
            "reward 'compute_score' (data source 'unknown', row ",
        ),
        (["rollout.script_path=raises.py:reply"], "all 8 rollouts failed; the first: ValueError: no"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(task_folder, here, capsys, overrides, complaint):
    (here / "empty.jsonl").touch()
    (here / "mixed.jsonl").write_text('{"prompt": "a", "x": 1}\n{"prompt": "b", "x": {"y": 1}}\n')
    (here / "bare.jsonl").write_text('{"prompt": "a", "x": {}}\n')
    (here / "half.jsonl").write_text('{"prompt": "a", "x": "\\ud83d"}\n')
    raises = "    raise ValueError('no')\n"
    (here / "raises.py").write_text(f"def compute_score(solution_str):\n{raises}def reply(context):\n{raises}")
    assert main(scripted(task_folder, *overrides)) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("agentrl: error")]
    assert complaint in said
    assert not list(here.glob("run/trajectories/train/*"))


@pytest.mark.slow
def test_settings_that_determine_rollouts_cannot_change_on_resume(task_folder, here, capsys):
    assert main(scripted(task_folder)) == 0
    for change in ("rollout.n=3", "rollout.temperature=0.5", "data.train_batch_size=8"):
        assert main(scripted(task_folder, change)) == 2
        assert f"{change.partition('=')[0]} was " in capsys.readouterr().err.splitlines()[1]
        assert main(scripted(task_folder, change, RESUME)) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert f"'{change.partition('=')[0]}' was " in said


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["rollout.temperature=0"], "'rollout.temperature=0' means greedy sampling"),
        (["reward.name=none", "reward.custom_reward_function.path=null"], "training and validation need a score"),
        (["data.output_path=x.parquet"], "'data.output_path' has no effect without 'trainer.mode=rollout_only'"),
    ],
)
def test_training_refuses_what_only_generation_can_do(task_folder, here, capsys, overrides, complaint):
    assert main(["train", *scripted(task_folder, *overrides)[1:]]) == 2
    assert complaint in capsys.readouterr().err


def test_progress_is_occasional_lines_without_a_terminal():
    seconds = iter([0.0, 4.0, 10.0, 12.0, 20.0])
    out = io.StringIO()
    progress = PlainProgress(8, 4, Console(file=out), clock=lambda: next(seconds))
    for stop in (Stop.FINISHED, Stop.ERROR, Stop.FINISHED, Stop.FINISHED):
        progress.add(Rollout([], stop))
    assert out.getvalue().splitlines() == [
        "rollouts 6/8 | 0.2/s | 0:10 left | 1 failed",
        "rollouts 8/8 | 0.2/s | 1 failed",
    ]


def test_progress_is_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Runner:
        on_end = None

    runner, terminal = Runner(), Terminal()
    console = Console(file=terminal, force_terminal=True, width=80, _environ={"TERM": "xterm"})
    with rollout_progress(runner, 4, 2, console):  # type: ignore[arg-type]  # all that is used of one
        for _ in range(2):
            assert runner.on_end is not None
            runner.on_end(Rollout([], Stop.FINISHED))
    assert "4/4" in terminal.getvalue()
    assert runner.on_end is None


@pytest.mark.parametrize("door", ["main_generation", "main_generation_server"])
def test_both_verl_commands_are_equal(capsys, monkeypatch, door):
    monkeypatch.setattr("sys.argv", [door, "data.paht=x"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"agentrl.trainer.{door}", run_name="__main__")
    assert ended.value.code == 2
    assert "data.paht" in capsys.readouterr().err
