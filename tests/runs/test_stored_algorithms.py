"""Training on stored rollouts, for every algorithm family: the same updates as the run, or other algorithms offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agentrl.cli.main import main
from agentrl.replay.base import Options, Replay
from agentrl.replay.readvantage.mode import readvantage
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore

ROOT = Path(__file__).parents[2]
REWARD = "def compute_score(solution_str):\n    return len(solution_str) % 7 / 7\n"
KL = ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]
FAMILIES = {
    "gae": [*KL, "algorithm.kl_ctrl.kl_coef=0.1"],
    "pairwise": [],
    "online_dpo": [],
    "rft": ["algorithm.rft_threshold=0.4"],
    "gspo": [*KL, "algorithm.rollout_correction.bypass_mode=false"],
}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)  # the experiment's paths are relative to ROOT


def train(task_folder: Path, folder: Path, *overrides: str) -> list[dict[str, float]]:
    """The metrics of the updates in each step of a run in `folder`."""
    reward = task_folder / "sevenths.py"
    reward.write_text(REWARD)
    options = [
        *(f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"),
        *("data.train_batch_size=4", "rollout.n=4", "actor.ppo_mini_batch_size=2", "trainer.logger=[jsonl]"),
        *("trainer.stop_when=null", "trainer.test_freq=0", "rollout.val_kwargs={}", "trainer.total_training_steps=2"),
        *(f"trainer.default_local_dir={folder}", f"reward.custom_reward_function.path={reward}"),
    ]
    assert main(["train", "+experiment=calculator", *options, *overrides]) == 0
    return updates(folder)


def updates(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = ("actor/", "critic/", "kl/", "kept/", "correction/")
    return [{name: value for name, value in row.items() if name.startswith(kinds)} for row in rows]


def same_weights(one: Path, other: Path) -> bool:
    first, second = (load_file(path) for path in (one, other))
    return all(first[name].equal(second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_stored_rollouts_repeat_the_updates_of_their_run_bit_for_bit(name, task_folder, tmp_path):
    live, again = tmp_path / "live", tmp_path / "again"
    own = [f"algorithm.name={name}", *FAMILIES[name]]
    first = train(task_folder, live, *own)
    assert train(task_folder, again, *own, "trainer.mode=train_only", f"trainer.saved_rollouts={live}") == first
    files = ["model.safetensors", *(["critic/model.safetensors"] if name == "gae" else [])]
    assert all(same_weights(live / "checkpoints/latest" / file, again / "checkpoints/latest" / file) for file in files)
    assert not same_weights(live / "checkpoints/latest/model.safetensors", task_folder / "model/model.safetensors")
    assert readvantage(Replay(open_saved(str(live)), Options())).values["identical"]


@pytest.mark.slow
def test_a_store_is_imitated_and_preferred_from_offline(task_folder, tmp_path, monkeypatch):
    train(task_folder, tmp_path / "live")
    saved = [f"trainer.saved_rollouts={tmp_path}/live", "trainer.mode=train_only", f"model.path={task_folder}/model"]
    monkeypatch.chdir(tmp_path)  # as a user starts it: no experiment, no task, no reward
    for name, more in (("rft", ["algorithm.rft_threshold=0.5"]), ("dpo", ["actor.optim.lr=1e-3"])):
        assert main(["train", f"algorithm.name={name}", *saved, *more, f"trainer.default_local_dir={name}"]) == 0
        assert not same_weights(
            tmp_path / name / "checkpoints/latest/model.safetensors", task_folder / "model/model.safetensors"
        )
    imitated, preferred = updates(tmp_path / "rft"), updates(tmp_path / "dpo")
    assert all(0 < step["kept/samples"] < 1 for step in imitated)
    assert preferred[0]["actor/accuracy"] == 0  # before its first update the policy equals its reference
    assert preferred[0]["actor/margin"] == pytest.approx(0, abs=1e-5)
    assert abs(preferred[1]["actor/margin"]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["algorithm.name=gae", "algorithm.use_kl_in_reward=true"])
def test_rollout_only_computes_no_advantages_that_need_scores(asked, task_folder, tmp_path):
    train(task_folder, tmp_path, asked, "trainer.mode=rollout_only", "trainer.total_training_steps=1")
    stored = list(TrajectoryStore(tmp_path / "trajectories/train").scan())
    assert len(stored) == 16
    assert all(advantages is None for each in stored for advantages in each.advantages)
