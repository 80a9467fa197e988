"""A small real run with saved rollouts: two scripted steps with correct and wrong calculator calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from agentrl.cli.main import main
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.types.rollout import Rollout

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
SCRIPT = """
from itertools import count
TURNS = count()

def reply(context):
    turn = next(TURNS)
    if context.count("tool_call") < 2 + turn % 3:
        return ['<tool_call>{"name": "calculator", "arguments": {"expression": "%d+1"}}</tool_call>' % turn,
                "Now <tool_call>{not json}</tool_call>",
                '<tool_call>{"name": "calculator", "arguments": {"expression": "1"}}</tool_call>'][turn % 3]
    return f"The answer is {turn % 7}" + " <" * (turn % 4)
"""
REWARD = """
import json
from pathlib import Path

SHOWN = Path(__file__).with_name("shown.jsonl")

def compute_score(data_source, solution_str, ground_truth, extra_info):
    with SHOWN.open("a") as file:
        print(json.dumps([data_source, solution_str, ground_truth, extra_info], sort_keys=True), file=file)
    return {"score": len(solution_str) % 5 / 4, "calls": extra_info["num_tool_calls"]}
"""


def make_run(folder: Path, task_folder: Path) -> Path:
    """Train for two steps; returns the run's folder.

    `shown_in_training.jsonl` beside it contains the inputs of its reward.
    """
    (folder / "script.py").write_text(SCRIPT)
    (folder / "reward.py").write_text(REWARD)
    shutil.copytree(task_folder / "model", folder / "model")
    keys = {
        "model.path": f"{folder}/model",
        "data.train_files": f"[{task_folder}/train.jsonl]",
        "data.val_files": f"[{task_folder}/val.jsonl]",
        "data.train_max_samples": 12,
        "data.val_max_samples": 4,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 64,
        "data.max_response_length": 192,
        "rollout.n": 4,
        "rollout.engine": "scripted",
        "rollout.script_path": f"{folder}/script.py:reply",
        "rollout.agent.default_agent_loop": "tool_agent",
        "rollout.multi_turn.function_tool_path": f"{CALCULATOR}/tool.py",
        "rollout.multi_turn.max_assistant_turns": 4,
        "reward.custom_reward_function.path": f"{folder}/reward.py",
        "trainer.default_local_dir": f"{folder}/run",
        "trainer.total_training_steps": 2,
        "trainer.test_freq": 2,
        "trainer.logger": "[jsonl]",
    }
    assert main(["train", *(f"{key}={value}" for key, value in keys.items())]) == 0
    (folder / "shown.jsonl").rename(folder / "shown_in_training.jsonl")
    return folder / "run"


def rewritten(
    run: Path,
    folder: Path,
    change: Callable[[Rollout], object] = lambda rollout: None,
    provenance: Callable[[dict[str, str]], Mapping[str, str]] = lambda kept: kept,
) -> Path:
    """The training rollouts of a run, changed, in a new folder, without their advantages."""
    store = TrajectoryStore(run / "trajectories/train")
    for step in store.steps:
        groups = store.groups(step)
        for group in groups:
            for rollout in group.rollouts:
                change(rollout)
        new = TrajectoryStore(folder / "trajectories/train", provenance=provenance(store.provenance(step)))
        new.write(step, groups)
    return folder


def with_config(**sections: object) -> Callable[[dict[str, str]], dict[str, str]]:
    """Provenance whose configuration has these sections."""
    return lambda kept: {**kept, "config": json.dumps({**json.loads(kept["config"]), **sections})}


def stored(run: Path, split: str = "train") -> list[StoredRollout]:
    return list(TrajectoryStore(run / "trajectories" / split).scan())


def replayed(capsys, *words: object, status: int = 0) -> dict:
    """The output of `agentrl replay --json -`."""
    assert main(["replay", *map(str, words), "--json", "-"]) == status
    return json.loads(capsys.readouterr().out)


def refused(capsys, *words: object) -> str:
    """The one-line error of `agentrl replay`."""
    assert main(["replay", *map(str, words)]) == 2
    return capsys.readouterr().err.removeprefix("agentrl: error: ").rstrip("\n")
