"""An online reward model: which rollouts it scores, its training data, and a bitwise equal resume."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from same_run import differences
from transformers import AutoModelForSequenceClassification

from agentrl.backends.base import Scores, StepStats
from agentrl.cli.main import main
from agentrl.config.reward_model import OnlineRewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.tools.base import InfraError
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.models.online_reward import OnlineRewardModel
from agentrl.trainer.sources.live import StoredSource
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory

ROOT = Path(__file__).parents[3]


class Backend:
    """Scores each conversation by its length; records its training samples."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, float]]] = []

    async def train_step(self, samples: Sequence[Sample], loss: object) -> StepStats:
        self.batches.append([(len(sample.token_ids) - 1, sample.returns[-1]) for sample in samples])
        return StepStats({"loss": 0.5, "grad_norm": 1.0, "lr": 0.1, "score_mean": 7.0, "skipped_updates": 0.0})

    async def score(self, samples: Sequence[Sample]) -> Scores:
        return Scores([], [], values=[[float(len(sample.token_ids))] for sample in samples])

    async def save(self, path: Path) -> None:
        await asyncio.to_thread(path.mkdir)

    async def load(self, path: Path) -> None: ...


async def paid(data_source: str, solution: str, truth: object, extra: object) -> dict[str, float]:
    return {"score": 0.5, "model": 0.5, **({"rule": 1.0} if solution else {})}


def online(backend: Backend | None = None, **options: object) -> OnlineRewardModel:
    config = OnlineRewardConfig.model_validate({"outcome": "rule", "warmup_steps": 2, **options})
    return OnlineRewardModel(
        backend or Backend(), paid, "model", lambda rollout: rollout.trajectories[-1].token_ids, config, 0
    )


def group(*outcomes: float, logit: float = 1.0) -> Group:
    """One rollout per reward; the first has two tokens, the next three, and so on."""
    rollouts = [
        Rollout(
            [Trajectory([Segment(Author.DEMONSTRATION, [1] * (2 + number))])],
            Stop.FINISHED,
            {"score": 0.5, "model": 0.5, "model/logit": logit, "rule": outcome},
        )
        for number, outcome in enumerate(outcomes)
    ]
    return Group(Task([], uid="g"), rollouts)


def steps(model: OnlineRewardModel, *groups: Group) -> list[dict[str, float]]:
    async def work() -> list[dict[str, float]]:
        source = model.watching(StoredSource(lambda step: [groups[step]], range(len(groups))))
        found = []
        for step in range(len(groups)):
            async with source.feeding():
                await source.take(step)
            found.append(await model([], step))
        assert source.position == len(groups)
        return found

    return asyncio.run(work())


def score(model: OnlineRewardModel, solution: str = "x") -> float:
    reward = model.with_reward(UserObjects()).reward
    return asyncio.run(reward("sums", solution, None, {"index": 4}))["score"]


def test_rule_is_the_reward_while_the_reward_model_warms_up():
    model = online()
    assert score(model) == 1.0
    steps(model, group(1.0), group(1.0))
    assert score(model) == 0.5


def test_python_reward_together_with_components_is_refused():
    with pytest.raises(ConfigError, match="do not pass a reward"):
        online().with_reward(UserObjects(reward=paid))


def test_rule_without_a_score_is_not_a_policy_failure():
    with pytest.raises(InfraError, match="row 4 of 'sums': component 'rule' has no value"):
        score(online(), "")


def test_rollouts_are_scored_before_the_reward_model_trains_on_them():
    first, last = steps(online(warmup_steps=1), group(1.0, 0.0, logit=2.0), group(1.0, 1.0, logit=0.0))
    assert (first["reward_model/accuracy"], first["reward_model/auc"]) == (0.5, 0.5)
    assert first["reward_model/brier"] == pytest.approx((0.1192**2 + 0.8808**2) / 2, abs=1e-4)
    assert [each["reward_model/warming_up"] for each in (first, last)] == [1.0, 0.0]
    assert (last["reward_model/accuracy"], last["reward_model/ece"]) == (1.0, 0.5)
    assert "reward_model/auc" not in last
    assert (first["reward_model/loss"], first["reward_model/updates"]) == (0.5, 1.0)


def test_online_reward_model_trains_on_recent_rollouts_at_intervals():
    backend = Backend()
    found = steps(online(backend, every=2, buffer=3), group(1.0, 0.0), group(0.25, 0.75), group(1.0), group(1.0))
    assert ["reward_model/updates" in each for each in found] == [False, True, False, True]
    assert sorted(backend.batches[0]) == [(2, 0.25), (3, 0.0), (3, 0.75)]


def test_batches_and_epochs_follow_the_sizes():
    backend = Backend()
    steps(online(backend, batch_size=2, epochs=2), group(1.0, 0.0, 1.0))
    assert list(map(len, backend.batches)) == [2, 1, 2, 1]


def test_held_out_rollouts_measure_reward_model_drift():
    backend = Backend()
    first, last = steps(online(backend), group(*[1.0] * 24), group(*[0.0] * 2))
    assert sum(map(len, backend.batches[:1])) == 21
    assert "reward_model/drift" not in first
    assert last["reward_model/drift"] == pytest.approx(0)
    assert last["reward_model/score_mean"] == pytest.approx((9 + 17 + 25) / 3 + 1)


def test_failed_rollouts_are_not_trained_on():
    failed = group(1.0, 0.0)
    failed.rollouts[0].infra_failed = True
    backend = Backend()
    steps(online(backend), failed)
    assert backend.batches == [[(3, 0.0)]]


def test_outcome_that_is_not_a_probability_is_an_error():
    with pytest.raises(RewardError, match=r"'rule' is 3, but it must be a probability from 0 to 1"):
        steps(online(), group(3.0))


def test_online_reward_model_buffer_is_saved(tmp_path: Path):
    one, other = Backend(), Backend()
    whole, resumed = online(one, buffer=16), online(other, buffer=16)
    steps(whole, group(*[1.0, 0.0] * 6))
    asyncio.run(whole.save(tmp_path, lambda backend, folder: backend.save(folder)))
    asyncio.run(resumed.load(tmp_path))
    assert steps(whole, group(0.5)) == steps(resumed, group(0.5))
    assert one.batches[1:] == other.batches
    assert resumed.warming_up is whole.warming_up is False


def test_checkpoint_without_critic_is_refused_on_resume(tmp_path: Path):
    with pytest.raises(ConfigError, match="it has no reward model, but this run trains one"):
        asyncio.run(online().load(tmp_path))


RULE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(len(solution_str) % 2)
"""


def train(task_folder: Path, run: Path, rule: Path, *overrides: str) -> int:
    components = f"{{model: {{reward: reward_model}}, rule: {{reward: '{rule}:compute_score', weight: 0}}}}"
    options = [
        *(f"model.path={task_folder}/model", f"trainer.default_local_dir={run}", "trainer.logger=[jsonl]"),
        *(f"data.train_files={task_folder}/train.jsonl", "data.val_files=[]", "data.train_batch_size=4"),
        *("rollout.n=4", "trainer.test_freq=0", "trainer.stop_when=null", "trainer.total_training_steps=4"),
        *("trainer.save_freq=2", "reward.custom_reward_function.path=null", f"+reward.components={components}"),
        "+reward.reward_model={online: {outcome: rule, warmup_steps: 1, optim: {lr: 1e-3}}}",
    ]
    return main(["train", "+experiment=calculator", *options, *overrides])


@pytest.fixture(scope="module")
def whole(task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole")
    (run.parent / "rule.py").write_text(RULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert train(task_folder, run, run.parent / "rule.py") == 0
    return run


@pytest.mark.slow
def test_run_with_an_online_reward_model(whole: Path):
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward_model/warming_up"] for row in rows] == [1.0, 0.0, 0.0, 0.0]
    assert rows[0]["reward/mean"] == rows[0]["reward/rule"]
    assert all(row["reward/mean"] == row["reward/model"] for row in rows[1:])
    assert all(row["reward_model/loss"] > 0 and row["reward_model/grad_norm"] > 0 for row in rows)
    model = AutoModelForSequenceClassification.from_pretrained(whole / "checkpoints/latest/reward_model")
    assert model.score.weight.any()


@pytest.mark.slow
def test_run_with_an_online_reward_model_resumes_bitwise(task_folder, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shutil.copytree(whole, run := tmp_path / "run", symlinks=True)
    back = ["trainer.resume_mode=path", f"trainer.resume_from_path={run}/checkpoints/step-2"]
    assert train(task_folder, run, whole.parent / "rule.py", *back) == 0
    assert differences(whole, run) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_online_reward_model_on_two_processes_is_the_one_of_one(task_folder, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert train(task_folder, tmp_path, whole.parent / "rule.py", "trainer.n_gpus_per_node=2") == 0
    files = [(run / "metrics.jsonl").read_text() for run in (whole, tmp_path)]
    one, two = ([json.loads(line) for line in file.splitlines()] for file in files)
    names = [name for name in one[-1] if name.startswith("reward_model/")] + ["reward/mean", "actor/loss"]
    assert len(names) > 5
    for name in names:
        assert two[1][name] == pytest.approx(one[1][name], rel=1e-3, abs=1e-5), name
    assert (tmp_path / "checkpoints/latest/reward_model").is_dir()
