"""Tasks are checked against tools, users and loops before a model is loaded; through the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl.cli.compose import compose_config
from agentrl.cli.main import main
from agentrl.telemetry.timing import Timer
from agentrl.trainer.builders.rollouts import UserObjects, open_rollout_parts
from agentrl.trainer.builders.sources import open_source

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


def options(task_folder: Path, folder: Path, *rows: dict[str, object]) -> list[str]:
    """Evaluation of the calculator task on one valid row and the given rows."""
    good = {"prompt": "1+1?", "data_source": "calculator", "ground_truth": "2"}
    file = folder / "val.jsonl"
    file.write_text("".join(json.dumps(good | row) + "\n" for row in ({}, *rows)))
    model = f"model.path={task_folder}/model"
    files = ["data.train_files=[]", f"data.val_files={file}", f"trainer.default_local_dir={folder}"]
    return ["+experiment=calculator", model, *files]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"tool_config": {"available_tools": ["calculater"]}}, "unknown tool 'calculater': did you mean 'calculator'?"),
        ({"tool_selection": ["calculater"]}, "unknown tool 'calculater': did you mean 'calculator'?"),
        ({"tools_kwargs": {"calculater": {}}}, "unknown tool 'calculater': did you mean 'calculator'?"),
        ({"agent_name": "tool_agnet"}, "unknown agent loop 'tool_agnet': did you mean 'tool_agent'?"),
        ({"tool_config": {"tool_format": "react"}}, "use 'hermes'"),
        ({"prompt": "1+1? " * 1000}, "data.max_prompt_length is"),
    ],
)
def test_a_row_that_cannot_be_rolled_out_is_named(task_folder, tmp_path, capsys, row, complaint):
    assert main(["eval", *options(task_folder, tmp_path, row)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"agentrl: error: {tmp_path}/val.jsonl row 1 (line 2): ")
    assert complaint in said


def test_a_data_source_without_a_reward_is_named(task_folder, tmp_path, capsys):
    custom = "reward.custom_reward_function.path=null"
    given = options(task_folder, tmp_path, {"data_source": "gsm9k"})
    rows = (tmp_path / "val.jsonl").read_text().replace("calculator", "gsm8k")
    (tmp_path / "val.jsonl").write_text(rows)
    assert main(["eval", *given, "reward.name=auto", custom]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/val.jsonl row 1 (line 2): there is no built-in reward for data_source 'gsm9k' (did you" in said


@pytest.mark.slow
def test_long_prompts_are_cut_to_leave_room_for_tools_and_instructions(task_folder, tmp_path, capsys):
    long = [{"prompt": "1+1? " * 300, "agent_name": name} for name in ("tool_agent", "react_agent", "single_turn")]
    config = compose_config([*options(task_folder, tmp_path, *long), "data.max_prompt_length=400"])
    config = config.model_copy(update={"data": config.data.model_copy(update={"truncation": "left"})})

    async def prompts() -> list[tuple[str, int]]:
        async with open_rollout_parts(config, UserObjects()) as parts:
            groups = await parts.collect_val()(parts.val_tasks)
        return [
            (str(group.task.messages[-1]["content"]), len(group.rollouts[0].trajectories[0].segments[0]))
            for group in groups
        ]

    (short, _), *cut = asyncio.run(prompts())
    assert short == "1+1?"
    assert all(0 <= 400 - length < 4 and ("1+1? " * 300).endswith(text) for text, length in cut)
    assert len(cut[1][0]) < len(cut[0][0])  # ReAct's instructions need prompt space
    assert "3 of 4 prompts are longer than 400 tokens: the last user text is cut (left)" in capsys.readouterr().out


@pytest.mark.slow
def test_files_are_drawn_by_their_weights(task_folder, tmp_path, capsys):
    for name, num_rows in (("a", 20), ("b", 4)):
        row = {"prompt": "1+1?", "data_source": name, "ground_truth": "2"}
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * num_rows)
    files = f"data.train_files=[{tmp_path}/a.jsonl,{tmp_path}/b.jsonl]"
    given = [*options(task_folder, tmp_path), files, "data.dataset_weights=[1,3]", "data.train_batch_size=32"]

    async def first_step() -> list[str]:
        config = compose_config([*given, "rollout.n=1", "trainer.total_training_steps=null"])
        async with open_rollout_parts(config, UserObjects()) as parts:
            source, total_steps = open_source(config, parts, Timer())
            assert total_steps == 1
            return [group.task.data_source for group in await source.take(0)]

    drawn = asyncio.run(first_step())
    assert (drawn.count("a"), drawn.count("b")) == (8, 24)
    assert "24 rows, fewer than data.train_batch_size=32" in capsys.readouterr().out
