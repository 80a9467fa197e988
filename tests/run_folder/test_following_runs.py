"""Complete runs with a moving reference, with an adaptive KL coefficient, and with tasks added by rollouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from killed_runs import arguments
from safetensors.torch import load_file
from same_run import differences

from agentrl.audit.auditor import Auditor
from agentrl.cli.main import main
from agentrl.replay.base import Options, Replay
from agentrl.replay.saved_run import open_saved
from agentrl.replay.why_mode import why
from agentrl.run_folder.checkpoints import read_state
from agentrl.store import TrajectoryStore

FOLLOWING = [
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.horizon=20",
    "algorithm.kl_ctrl.target_kl=0.001",
    "ref.sync_steps=2",
]
FILTERING = ["algorithm.filter_groups.enable=true", "data.train_max_samples=20"]


def slow(value):
    return pytest.param(value, marks=pytest.mark.slow)


def train(task_folder, folder, *overrides):
    short = [
        "trainer.total_training_steps=4",
        "trainer.save_freq=1",
        "trainer.max_checkpoints_to_keep=null",
        "data.val_files=[]",
        "trainer.stop_when=null",
        "trainer.save_best=null",
        "trainer.test_freq=0",
        "trainer.log_val_generations=0",
    ]
    command = [each for each in arguments(task_folder, folder, "plain") if not each.startswith("data.val_files")]
    return main([*command, *short, *overrides])


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder, step, inner=""):
    return load_file(folder / f"checkpoints/step-{step}" / inner / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.fixture(scope="module")
def following(task_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("following") / "run"
    assert train(task_folder, folder, *FOLLOWING) == 0
    return folder


@pytest.mark.slow
def test_the_reference_is_the_policy_of_every_so_many_steps(following):
    assert not (following / "checkpoints/step-1/reference").exists()
    for step, taken_at in ((2, 2), (3, 2), (4, 4)):
        assert same(weights(following, step, "reference"), weights(following, taken_at))
    assert not same(weights(following, 3, "reference"), weights(following, 3))


@pytest.mark.slow
def test_kl_is_zero_right_after_reference_sync(following):
    apart = [abs(row["kl/reward_mean"]) for row in metrics(following)]
    assert max(apart[0], apart[2]) < 1e-5  # steps 1 and 3 sample with weights equal to the reference
    assert min(apart[1], apart[3]) > 1e-4


def test_the_coefficient_follows_and_is_saved(following):
    coefficients = [row["kl/reward_coef"] for row in metrics(following)]
    assert coefficients[0] == 0.001
    assert len(set(coefficients)) == 4
    saved = [json.loads((following / f"checkpoints/step-{step}/kl_control.json").read_text()) for step in (1, 2, 3)]
    assert [each["value"] for each in saved] == coefficients[1:]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", [slow(1), 2, slow(3)])
def test_a_run_resumed_at_any_step_ends_in_the_same_way(task_folder, following, tmp_path, step):
    again = Path(shutil.copytree(following, tmp_path / "again", symlinks=True))
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={again}/checkpoints/step-{step}"]
    assert train(task_folder, again, *FOLLOWING, *back) == 0
    assert differences(following, again) == []


@pytest.mark.slow
def test_synced_reference_is_kept_on_resume_without_further_sync(task_folder, following, tmp_path):
    again = Path(shutil.copytree(following, tmp_path / "again", symlinks=True))
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={again}/checkpoints/step-2", "ref.sync_steps=null"]
    assert train(task_folder, again, *FOLLOWING, *back) == 0
    assert same(weights(again, 4, "reference"), weights(following, 2))


def problems(folder):
    ledger = Auditor(folder=folder).audit(sorted((folder / "trajectories").glob("[tv]*/*.parquet")))
    return [str(each) for name in ("groups", "identity", "siblings") for each in ledger.findings[name].problems]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", [0, 2])
def test_a_resumed_run_with_filtering_ends_in_the_same_way(task_folder, tmp_path, most):
    options = [*FILTERING, f"algorithm.filter_groups.max_num_gen_batches={most}"]
    whole = tmp_path / "whole"
    assert train(task_folder, whole, *options) == 0
    filtered = [row["sampling/filtered"] for row in metrics(whole)]
    assert sum(filtered) > 0
    drawn = [read_state(whole / f"checkpoints/step-{step}").position for step in (1, 2, 3, 4)]
    assert drawn == [sum(row["sampling/drawn"] for row in metrics(whole)[: step + 1]) for step in range(4)]
    groups = [TrajectoryStore(whole / "trajectories/train").groups(step) for step in (1, 2, 3, 4)]
    assert all(len({each.reward for each in group.rollouts}) > 1 for step in groups for group in step)
    assert [len(step) for step in groups] == [
        row["sampling/drawn"] - row["sampling/filtered"] for row in metrics(whole)
    ]
    assert problems(whole) == []
    dropped = TrajectoryStore(whole / "trajectories/excluded")
    found = [[each.excluded for each in dropped.scan(steps=[step])] for step in (1, 2, 3, 4)]
    assert [len(each) for each in found] == [2 * count for count in filtered]
    assert {reason for each in found for reason in each} == {"equal_rewards"}
    assert [row.get("rollout/excluded/equal_rewards", 0.0) for row in metrics(whole)] == [len(each) for each in found]
    assert not any(each.rollout.trajectories for each in dropped.scan())
    told = why(Replay(open_saved(str(whole)), Options())).values["excluded"]
    assert [each["reason"] for each in told] == ["equal_rewards"] * sum(map(len, found))
    again = Path(shutil.copytree(whole, tmp_path / "again", symlinks=True))
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={again}/checkpoints/step-2"]
    assert train(task_folder, again, *options, *back) == 0
    assert differences(whole, again) == []


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("staleness", [1, 0])
def test_remax_rollouts_store_the_greedy_score(task_folder, tmp_path, staleness):
    folder = tmp_path / "remax"
    assert train(task_folder, folder, "algorithm.name=remax", f"trainer.max_staleness={staleness}") == 0
    groups = TrajectoryStore(folder / "trajectories/train").groups(3)
    assert [len(group.rollouts) for group in groups] == [2, 2]
    baselines = [{each.rewards["baseline"] for each in group.rollouts} for group in groups]
    assert all(len(each) == 1 for each in baselines)
    assert problems(folder) == []
