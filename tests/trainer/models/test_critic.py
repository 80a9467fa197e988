"""The critic in the training loop: order of updates, metrics, and a bitwise equal resume."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from same_run import differences
from transformers import AutoModelForSequenceClassification

from agentrl.algos.losses.value import ValueLoss
from agentrl.backends.base import Scores, StepStats
from agentrl.cli.main import main
from agentrl.config.trainer import TrainerConfig
from agentrl.errors import ConfigError
from agentrl.telemetry.timing import Timer
from agentrl.trainer.checkpointing import open_checkpoints
from agentrl.trainer.learner import StepHooks, named
from agentrl.trainer.models.critic import Critic
from agentrl.trainer.scorer import Scorer
from agentrl.trainer.sources.live import StoredSource
from agentrl.types.sample import Sample

ROOT = Path(__file__).parents[3]


class Recording:
    """A backend that records which samples it was trained on; its weights are a word in a file."""

    def __init__(self, word: str = ""):
        self.batches: list[list[str]] = []
        self.word = word

    async def train_step(self, samples: Sequence[Sample], loss: object) -> StepStats:
        self.batches.append([sample.uid for sample in samples])
        return StepStats({"loss": 2.0, "vf_clipfrac": 0.5, "lr": 0.1, "skipped_updates": 0.0})

    async def score(self, samples: Sequence[Sample]) -> Scores:
        return Scores([], [], values=[[0.0, 7.0] for _ in samples])

    async def save(self, path):
        path.mkdir()
        (path / "word").write_text(self.word)

    async def load(self, path):
        self.word = (path / "word").read_text()


def sample(uid: str, value: float = 0.0, target: float = 1.0) -> Sample:
    return Sample([1, 2], [0, 1], [1.0, 1.0], [0.0, 0.0], values=[0.0, value], returns=[0.0, target], uid=uid)


def critic(backend: Recording, **options: object) -> Critic:
    return Critic(backend, ValueLoss(), **{"mini_batch_groups": None, "epochs": 1, "seed": 0} | options)


def test_critic_reports_updates_and_previous_explained_variance():
    samples = [sample("a", 0.0, 0.0), sample("b", 1.0, 1.0), sample("c", 2.0, 3.0)]
    assert asyncio.run(critic(Recording(), mini_batch_groups=2, epochs=2)(samples, 0)) == {
        "critic/vf_loss": 2.0,
        "critic/vf_clipfrac": 0.5,
        "critic/lr": 0.1,
        "critic/skipped_updates": 0.0,
        "critic/updates": 4.0,
        "critic/vf_explained_var": pytest.approx(1 - 2 / 14),
    }


def test_the_critic_is_updated_before_the_policy():
    backend, order = Recording(), []

    async def learn(samples: Sequence[Sample], step: int) -> dict[str, float]:
        order.append((step, len(backend.batches)))
        return {"actor/loss": 1.0}

    hooks = StepHooks(Timer(), before_update=named(critic=critic(backend)), update=named(learn=learn))
    metrics = [asyncio.run(hooks.run_learn([sample("a")], step)) for step in range(2)]
    assert order == [(0, 1), (1, 2)]
    assert all({"actor/loss", "critic/vf_loss"} <= each.keys() for each in metrics)


def test_values_are_scored_together_with_log_probabilities():
    async def logprobs(samples: Sequence[Sample]) -> Scores:
        return Scores([[0.0, -1.0]], [[0.0, 0.5]])

    (scored,) = asyncio.run(Scorer({"old_logprobs": logprobs, "values": Recording().score})([sample("a")]))
    assert scored.values == [0.0, 7.0]
    assert scored.old_logprobs == [0.0, -1.0]


def checkpoints(folder: Path, policy: Recording, *critics: Recording):
    """Checkpoints of a policy and its critic, if it has one."""
    source = StoredSource(lambda step: [], ())
    return open_checkpoints(TrainerConfig(default_local_dir=folder), policy, source, [critic(each) for each in critics])


def test_a_checkpoint_holds_the_critic(tmp_path: Path):
    asyncio.run(checkpoints(tmp_path, Recording("policy"), Recording("critic")).save(1))
    assert (tmp_path / "checkpoints/step-1/critic/word").read_text() == "critic"
    restored = Recording(), Recording()
    asyncio.run(checkpoints(tmp_path, *restored).restore())
    assert [each.word for each in restored] == ["policy", "critic"]


def test_checkpoint_without_a_critic_is_refused(tmp_path: Path):
    asyncio.run(checkpoints(tmp_path, Recording("policy")).save(1))
    with pytest.raises(ConfigError, match=r"'.*step-1': it has no critic, but this run trains one"):
        asyncio.run(checkpoints(tmp_path, Recording(), Recording()).restore())


PPO = ["algorithm.name=gae", "critic.ppo_mini_batch_size=2", "trainer.critic_warmup=1"]
PPO += ["actor.optim.total_updates=4", "critic.optim={lr: 1e-3, lr_scheduler_type: linear, total_updates: 8}"]


REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) % 3 / 2  # of random weights, whose answers are never right
"""


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("reward") / "reward.py"
    file.write_text(REWARD)
    return f"reward.custom_reward_function.path={file}"


def train(task_folder: Path, run: Path, *overrides: str) -> int:
    options = [f"model.path={task_folder}/model", f"trainer.default_local_dir={run}", "trainer.logger=[jsonl]"]
    files = [f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]"]
    small = ["data.train_batch_size=4", "rollout.n=2", "trainer.test_freq=0"]
    goal = ["trainer.stop_when=null"]
    return main(["train", "+experiment=calculator", *options, *files, *small, *goal, *overrides])


@pytest.fixture(scope="module")
def whole(task_folder: Path, reward: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert train(task_folder, run, *PPO, reward, "trainer.total_training_steps=4", "trainer.save_freq=2") == 0
    return run


@pytest.mark.slow
def test_run_with_a_critic_trains(whole: Path):
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["critic/updates"] for row in rows] == [2.0] * 4
    assert ["actor/loss" in row for row in rows] == [False, True, True, True]  # warm-up trains only the critic
    assert [row["critic/lr"] for row in rows] == sorted((row["critic/lr"] for row in rows), reverse=True)
    assert rows[0]["critic/lr"] == pytest.approx(1e-3 * (1 + 7 / 8) / 2)  # the mean of two updates
    wanted = {"vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr", "vf_explained_var"}
    assert {f"critic/{name}" for name in wanted} <= rows[-1].keys()
    critic = AutoModelForSequenceClassification.from_pretrained(whole / "checkpoints/latest/critic")
    assert critic.score.weight.any()


@pytest.mark.slow
def test_a_run_with_a_critic_resumes_bitwise(task_folder, reward, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shutil.copytree(whole, run := tmp_path / "run", symlinks=True)
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={run}/checkpoints/step-2"]
    assert train(task_folder, run, *PPO, reward, "trainer.total_training_steps=4", "trainer.save_freq=2", *back) == 0
    assert differences(whole, run) == []


@pytest.mark.slow
def test_learning_again_from_the_stored_rollouts_is_bitwise_the_same(task_folder, reward, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    again = ["trainer.mode=train_only", f"trainer.saved_rollouts={whole}", "trainer.total_training_steps=4"]
    assert train(task_folder, tmp_path, *PPO, reward, *again) == 0
    for part in ("", "critic/"):
        one, other = (load_file(run / f"checkpoints/step-4/{part}model.safetensors") for run in (whole, tmp_path))
        assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_a_run_with_a_missing_critic_is_refused_in_one_line(task_folder, reward, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    shutil.copytree(whole, run := tmp_path / "run", symlinks=True)
    shutil.rmtree(run / "checkpoints/step-4/critic")
    (run / "checkpoints/step-4/manifest.json").unlink()  # as a checkpoint without a critic
    assert train(task_folder, run, *PPO, reward, "trainer.total_training_steps=5", "trainer.resume_mode=auto") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "step-4': it has no critic, but this run trains one" in said


@pytest.mark.slow
def test_critic_warmup_of_all_steps_is_refused(task_folder, reward, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    epoch = ["data.train_max_samples=8", "trainer.critic_warmup=2", "trainer.total_training_steps=null"]
    assert train(task_folder, tmp_path, "algorithm.name=gae", reward, *epoch) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "'trainer.critic_warmup=2' leaves no step to train the policy: the run has 2" in said
