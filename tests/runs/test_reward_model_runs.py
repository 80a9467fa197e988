"""Command-line runs that train a reward model, and uses of its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from same_run import differences
from transformers import AutoModelForSequenceClassification

from agentrl.cli.main import main
from agentrl.config.reward import RewardConfig
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import load_reward


def talk(number: int, right: bool) -> list[dict[str, str]]:
    said = "yes" if right else "no"
    return [
        {"role": "user", "content": f"Is {number} a number?"},
        {"role": "assistant", "content": "Let me see."},
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": said},
    ]


ROWS = {
    "reward_pairs": [{"chosen": talk(number, True), "rejected": talk(number, False)} for number in range(8)],
    "reward_outcomes": [{"messages": talk(number, number % 2 == 0), "label": number % 2 == 0} for number in range(8)],
    "reward_steps": [
        {"messages": talk(number, number % 2 == 0), "labels": [1, number % 2 == 0]} for number in range(8)
    ],
}


def train(task_folder: Path, folder: Path, name: str, *overrides: str) -> int:
    file = folder / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, ROWS[name])))
    options = [
        *(f"algorithm.name={name}", f"model.path={task_folder}/model", "trainer.logger=[jsonl]"),
        *(f"data.train_files={file}", f"data.val_files={file}", "data.train_batch_size=4"),
        *(f"trainer.default_local_dir={folder}/run", "trainer.total_training_steps=20", "trainer.test_freq=10"),
        *("actor.optim={lr: 3e-3, weight_decay: 0}", "trainer.save_freq=10"),
    ]
    return main(["train", *options, *overrides])


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    assert train(task_folder, folder, "reward_pairs") == 0
    return folder


@pytest.mark.slow
def test_pairs_are_learnt(trained):
    first, *_, last = (row for row in metrics(trained) if "val/accuracy" in row)
    assert first["val/accuracy"] == first["val/margin"] == 0  # a new head scores everything 0
    assert last["val/accuracy"] == 1
    assert last["val/margin"] > 1
    assert {"val/ece", "val/brier", "reward_model/drift", "reward_model/score_std"} <= last.keys()
    assert metrics(trained)[1]["actor/loss"] == pytest.approx(0.6931, abs=1e-3)


def test_reward_model_checkpoint_loads_as_classifier_and_reward(trained):
    import asyncio

    checkpoint = trained / "run/checkpoints/latest"
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    assert model.config.num_labels == 1
    section = {"path": str(checkpoint), "device": "cpu"}

    async def score() -> list[float]:
        reward = load_reward(RewardConfig.model_validate({"name": "reward_model", "reward_model": section}))
        info = [{"conversation": talk(3, right), "token_ids": []} for right in (True, False)]
        try:
            return [(await reward("", "", None, each))["score"] for each in info]
        finally:
            close_reward(reward)

    good, bad = asyncio.run(score())
    assert good > bad + 1


@pytest.mark.slow
def test_reward_model_run_resumes_bitwise(task_folder, trained, tmp_path):
    import shutil

    shutil.copytree(trained, tmp_path, symlinks=True, dirs_exist_ok=True)
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={tmp_path}/run/checkpoints/step-10"]
    files = [f"data.{split}_files={trained}/reward_pairs.jsonl" for split in ("train", "val")]
    assert train(task_folder, tmp_path, "reward_pairs", *files, *back) == 0
    assert differences(trained / "run", tmp_path / "run") == []


@pytest.mark.slow
def test_micro_batches_of_a_pair_each_are_the_same(task_folder, trained, tmp_path):
    one = ["actor.use_dynamic_bsz=false", "actor.ppo_micro_batch_size_per_gpu=1", "trainer.total_training_steps=2"]
    assert train(task_folder, tmp_path, "reward_pairs", *one) == 0
    rows, whole = metrics(tmp_path), metrics(trained)
    assert rows[2]["actor/num_micro_batches"] == 8
    assert rows[2]["actor/loss"] == pytest.approx(whole[2]["actor/loss"], rel=1e-4)
    assert rows[2]["actor/grad_norm"] == pytest.approx(whole[2]["actor/grad_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["reward_outcomes", "reward_steps"])
def test_labels_are_learnt(name, task_folder, tmp_path):
    assert train(task_folder, tmp_path, name) == 0
    last = metrics(tmp_path)[-1]
    assert last["val/auc"] == last["val/accuracy"] == 1
    assert last["val/brier"] < 0.1
    assert last["actor/accuracy"] == 1
    assert last["actor/num_tokens"] == (8 if name == "reward_steps" else 4)


@pytest.mark.slow
def test_unknown_metric_is_refused(task_folder, tmp_path, capsys):
    assert train(task_folder, tmp_path, "reward_pairs", "trainer.save_best=val/auc") == 2
    assert "'trainer.save_best': the validation has no 'val/auc'" in capsys.readouterr().err


def test_numbers_that_are_not_probabilities_are_refused_with_their_row(task_folder, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text(json.dumps({"messages": talk(1, True), "label": 7}))
    files = [f"data.train_files={tmp_path}/bad.jsonl", "data.val_files=[]", "trainer.test_freq=0"]
    assert train(task_folder, tmp_path, "reward_outcomes", *files) == 2
    assert "rollout 0-0/0: the label 7 is not a probability" in capsys.readouterr().err


@pytest.mark.slow
def test_stored_rollouts_serve_as_well(task_folder, tmp_path, monkeypatch):
    """Labels are their rewards by name; pairs are the best and the worst rollout of each group."""
    monkeypatch.chdir(Path(__file__).parents[2])
    (tmp_path / "varied.py").write_text(
        "def compute_score(solution_str):\n"
        "    return {'score': len(solution_str) % 3 / 2, 'even': float(len(solution_str) % 2 == 0)}\n"
    )
    files = [f"model.path={task_folder}/model", f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"]
    few = ["data.train_batch_size=4", "rollout.n=4", "trainer.stop_when=null", "trainer.test_freq=0"]
    where = [f"trainer.default_local_dir={tmp_path}/sampled", "trainer.total_training_steps=2"]
    own = [f"reward.custom_reward_function.path={tmp_path}/varied.py", "rollout.val_kwargs={}"]
    assert main(["train", "+experiment=calculator", *files, *few, *where, *own]) == 0
    stored = ["trainer.mode=train_only", f"trainer.saved_rollouts={tmp_path}/sampled", "data.val_files=[]"]
    more = {"reward_pairs": [], "reward_outcomes": ["algorithm.reward_training.outcome=even"]}
    for name, options in more.items():
        length = ["trainer.total_training_steps=2", "trainer.test_freq=0"]
        assert train(task_folder, tmp_path / name, name, *stored, *length, *options) == 0
        rows = metrics(tmp_path / name)
        assert [row["actor/updates"] for row in rows] == [1, 1]
        assert rows[0]["actor/loss"] == pytest.approx(0.6931, abs=1e-3)
        assert rows[0]["actor/num_tokens"] == 16 if name == "reward_outcomes" else rows[0]["actor/num_tokens"] <= 8
