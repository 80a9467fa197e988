"""One command-line step of every algorithm on the calculator, selected by name alone; the weights must change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.cli.main import main
from agentrl.config.presets import PRESETS
from agentrl.store import TrajectoryStore

ROOT = Path(__file__).parents[2]
VARIED = """
def compute_score(solution_str):
    return {"score": len(solution_str) % 7 / 7, "even": float(len(solution_str) % 2 == 0)}
"""


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


def step(task_folder: Path, folder: Path, *overrides: str, train: str = "train.jsonl") -> dict[str, float]:
    """The metrics of the only step of the run in `folder`."""
    reward = folder / "varied.py"
    reward.write_text(VARIED)
    options = [
        *(f"model.path={task_folder}/model", f"data.train_files={task_folder}/{train}", "data.val_files=[]"),
        *("data.train_batch_size=4", "trainer.stop_when=null", "trainer.test_freq=0", "trainer.logger=[jsonl]"),
        *("rollout.val_kwargs={}", "trainer.total_training_steps=1", f"trainer.default_local_dir={folder / 'run'}"),
        f"reward.custom_reward_function.path={reward}",
    ]
    assert main(["train", "+experiment=calculator", *options, *overrides]) == 0
    return json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])


def moved(task_folder: Path, folder: Path) -> bool:
    before, after = (
        load_file(f"{path}/model.safetensors") for path in (f"{task_folder}/model", folder / "run/checkpoints/latest")
    )
    return any(not before[name].equal(weight) for name, weight in after.items())


LIVE = [name for name, preset in PRESETS.items() if preset.feed == "rollouts"]
FURTHER = {"rft": ["algorithm.rft_threshold=0.4"]}


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", LIVE)
def test_algorithm_is_selected_by_name_only(name, task_folder, tmp_path) -> None:
    metrics = step(task_folder, tmp_path, f"algorithm.name={name}", "rollout.n=4", *FURTHER.get(name, ()))
    assert metrics["actor/updates"] == 1
    assert metrics["actor/grad_norm"] > 0
    assert moved(task_folder, tmp_path)


@pytest.mark.slow
def test_step_without_useful_samples_does_not_change_the_policy(task_folder, tmp_path) -> None:
    metrics = step(task_folder, tmp_path, "algorithm.name=rft", "algorithm.rft_threshold=9")
    assert metrics["kept/samples"] == metrics["actor/updates"] == 0
    assert not moved(task_folder, tmp_path)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_saved_pairs_are_learnt_from(name, task_folder, tmp_path) -> None:
    rows = [json.loads(line) for line in (task_folder / "sft.jsonl").read_text().splitlines()[:8]]
    pairs = [
        {"chosen": one["messages"], "rejected": [*one["messages"][:-1], {"role": "assistant", "content": "no"}]}
        for one in rows
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    options = [f"algorithm.name={name}", f"data.train_files={tmp_path}/pairs.jsonl", "rollout.n=1"]
    metrics = step(task_folder, tmp_path, *options)
    assert metrics["actor/accuracy"] == 0  # before its first update the policy equals its reference
    assert metrics["actor/margin"] == pytest.approx(0, abs=1e-5)
    assert moved(task_folder, tmp_path)


USER = """
from agentrl.interactions.base import BaseInteraction

class User(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        turn = sum(message["role"] == "assistant" for message in messages)
        length = len(str(messages[-1].get("content")))
        return turn > 2, "Go on.", length % 5 / 5, {"observation_key": f"after {turn - 1}"}
"""


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["gigpo", "grpo_turn", "mt_grpo"])
def test_user_scores_are_credited_to_their_turn(name, task_folder, tmp_path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "users.yaml").write_text(f"interaction: [{{class_name: '{tmp_path}/user.py:User'}}]")
    users = f"rollout.multi_turn.interaction_config_path={tmp_path}/users.yaml"
    limits = ["rollout.multi_turn.max_assistant_turns=3", "rollout.multi_turn.max_turn_tokens=null"]
    step(task_folder, tmp_path, f"algorithm.name={name}", "rollout.n=4", users, *limits)
    stored = [each for each in TrajectoryStore(tmp_path / "run/trajectories/train").scan() if each.advantages[0]]
    turns = [
        {advantage for advantage, trained in zip(*pair, strict=True) if trained}
        for each in stored
        for pair in zip(
            each.advantages, (trajectory.loss_mask for trajectory in each.rollout.trajectories), strict=True
        )
    ]
    assert max(map(len, turns)) > 1  # advantages differ between the turns of a rollout
    assert "after 0" in {reward.observation_key for each in stored for reward in each.rollout.turn_rewards}
