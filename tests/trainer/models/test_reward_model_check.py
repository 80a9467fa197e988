"""Metrics of a reward model on held-out rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.algos.reward_model.samples import reading
from agentrl.backends.base import Scores
from agentrl.errors import ConfigError
from agentrl.reporting.health.history import History
from agentrl.reporting.health.reward_rules import REWARD_RULES
from agentrl.trainer.models.reward_model_metrics import RewardModelCheck, drift, judged, of_labels, of_numbers, of_pairs
from agentrl.types.sample import Sample


def sample(uid: str, label: float = 0.0, sign: float = 1.0) -> Sample:
    read = reading([1, 2], {2: label}, uid)
    return replace(read, advantages=[sign * place for place in read.loss_mask])


PAIRS = [sample("a", sign=-1), sample("a"), sample("b"), sample("b", sign=-1)]


def test_pair_metrics_of_a_reward_model():
    found = of_pairs(PAIRS, [0.0, 2.0, -1.0, 0.0])
    assert found["accuracy"] == 0.5
    assert found["margin"] == 0.5
    assert found["num_pairs"] == 2
    # predicts 0.8808 for the correct answer and 0.7311 for the wrong one
    assert found["ece"] == pytest.approx((0.1192 + 0.7311) / 2, abs=1e-4)
    assert found["brier"] == pytest.approx((0.1192**2 + 0.7311**2) / 2, abs=1e-4)


def test_label_metrics_of_a_reward_model():
    found = of_labels([sample("a", 1.0), sample("b", 0.0), sample("c", 0.0)], [2.0, -1.0, 3.0])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["auc"] == 0.5
    assert found.keys() == {"accuracy", "auc", "ece", "brier"}


def test_equal_outcomes_have_no_ranking():
    assert "auc" not in judged([0.2, 0.7], [1.0, 1.0])


def test_number_metrics_of_a_reward_model():
    found = of_numbers([sample("a", 1.0), sample("b", 3.0)], [0.0, 5.0])
    assert found == {"mse": 2.5, "rank_correlation": pytest.approx(1.0)}


def test_drift_is_measured_on_held_out_rows():
    assert drift([], [1.0, 3.0]) == {"score_mean": 2.0, "score_std": 1.0}
    assert drift([1.0, 3.0], [5.0, 9.0])["drift"] == pytest.approx(0)
    assert drift([1.0, 3.0], [9.0, 5.0])["drift"] == pytest.approx(2)
    assert "drift" not in drift([1.0, 1.0], [9.0, 5.0])


def check(answers: list[list[float]]) -> RewardModelCheck:
    async def score(samples: Sequence[Sample]) -> Scores:
        said = answers.pop(0)
        return Scores([], [], values=[[0.0, 0.0, value] for value in said])

    algorithm = SimpleNamespace(
        samples=lambda groups: groups, credit=lambda groups, samples: samples, correct=lambda samples: (samples, {})
    )
    return RewardModelCheck(lambda: PAIRS, algorithm, score, of_pairs)


def test_the_rows_are_the_same_each_time_and_after_a_resume(tmp_path: Path):
    whole = check([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]])
    first, groups = asyncio.run(whole(0))
    assert groups == []
    assert first["val/accuracy"] == 0.5
    assert "reward_model/drift" not in first
    asyncio.run(whole.save(tmp_path, None))
    again = check([[3.0, 2.0, 1.0, 0.0]])
    asyncio.run(again.load(tmp_path))
    assert asyncio.run(again(1))[0] == asyncio.run(whole(1))[0]


def test_damaged_file_is_named(tmp_path: Path):
    (tmp_path / "reward_scores.json").write_text("[1,")
    with pytest.raises(ConfigError, match=r"cannot resume from .*reward_scores\.json"):
        asyncio.run(check([]).load(tmp_path))


GOOD = {"reward_model/accuracy": 0.9, "reward_model/ece": 0.05, "reward_model/drift": 0.05}


def firing(change: dict[str, float], num_steps: int) -> set[str]:
    history = History()
    for _ in range(num_steps):
        history.add(GOOD | change)
    return {name for name, rule in REWARD_RULES.items() if rule(history)}


@pytest.mark.parametrize(
    ("rule", "bad", "num_steps"),
    [
        ("reward_accuracy", {"reward_model/accuracy": 0.5}, 3),
        ("reward_ece", {"reward_model/ece": 0.3}, 3),
        ("reward_drift", {"reward_model/drift": 0.7}, 1),
    ],
)
def test_bad_reward_model_metrics_cause_warnings(rule, bad, num_steps):
    assert firing({}, 20) == set()
    assert firing(bad, num_steps) == {rule}
    assert firing(bad, num_steps - 1) == set() if num_steps > 1 else True
    assert firing(bad | {"reward_model/warming_up": 1.0}, 20) == set()
