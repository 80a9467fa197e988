"""The gradient and the metrics of every algorithm do not depend on the split of a mini-batch into micro-batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from tiny_models import VOCAB, in_float64, make_model

from agentrl.algos.base import LossFunction
from agentrl.algos.build import build_algorithm
from agentrl.algos.losses.registry import POLICY_LOSSES
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch
from agentrl.config.presets import PRESETS
from agentrl.config.validate import validate_config
from agentrl.types.rollout import Group, Rollout, Stop, TurnReward
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

draw = random.Random(0)


def numbers(count: int, low: float, high: float) -> list[float]:
    return [draw.uniform(low, high) for _ in range(count)]


def tokens(count: int) -> list[int]:
    return [draw.randrange(VOCAB) for _ in range(count)]


def said(count: int) -> Segment:
    return Segment(Author.MODEL, tokens(count), numbers(count, -5, -3), [VersionSpan(0, count)])


def trajectory(prompt: list[int]) -> Trajectory:
    """A model turn, a tool answer and another model turn, with the given lengths."""
    tool = Segment(Author.TOOL, tokens(draw.randint(1, 3)))
    return Trajectory([Segment(Author.PROMPT, prompt), said(draw.randint(1, 6)), tool, said(draw.randint(1, 6))])


def rollout(prompt: list[int], score: float | None, num_trajectories: int = 1) -> Rollout:
    """A reward of None: the rollout failed for reasons outside the policy."""
    return Rollout(
        [trajectory(prompt) for _ in range(num_trajectories)],
        Stop.FINISHED,
        {"score": score or 0.0, "style": draw.random(), "baseline": 0.3},
        turn_rewards=[TurnReward(0, 1, "step", draw.random(), observation_key=draw.choice("ab"))],
        infra_failed=score is None,
    )


def groups() -> list[Group]:
    """Uneven groups with several trajectories, a failed rollout and equal rewards."""
    draw.seed(0)
    scores: list[list[float | None]] = [[1.0, 0.0, 0.5], [0.2, 0.9, None, 0.4, 0.9], [1.0, 1.0], [0.0, 1.0]]
    found = []
    for number, of_group in enumerate(scores):
        prompt = tokens(draw.randint(2, 5))
        rollouts = [rollout(prompt, score, 1 + (place == 1)) for place, score in enumerate(of_group)]
        found.append(Group(Task([], uid=f"group-{number}"), rollouts))
    return found


def scored(sample: Sample) -> Sample:
    """The sample with random values for every extra input that an algorithm may need."""
    mask = sample.loss_mask

    def on_mask(low: float, high: float) -> list[float]:
        return [value * trained for value, trained in zip(numbers(len(mask), low, high), mask, strict=True)]

    return replace(sample, old_logprobs=on_mask(-5, -3), ref_logprobs=on_mask(-5, -3), values=on_mask(0, 1))


def minibatch(**sections: object) -> tuple[list[Sample], LossFunction]:
    algorithm, given = build_algorithm(validate_config({"model": {"path": "unused"}, **sections})), groups()
    samples = [scored(sample) for sample in algorithm.samples(given)]
    kept, _ = algorithm.correct(algorithm.credit(given, samples))
    return kept, algorithm.loss


def gradients(
    model: PositionwiseModel, samples: list[Sample], loss: LossFunction, packs: list[list[int]]
) -> tuple[list[torch.Tensor], dict[str, float]]:
    model.model.zero_grad()
    with model.running():
        metrics = accumulate_gradients(model, mini_batch(samples, loss), loss, packs)
    return [value.grad.clone() for value in model.model.parameters() if value.grad is not None], metrics


def cuts(samples: list[Sample]) -> list[list[list[int]]]:
    """Three splits: two arbitrary halves; one sample each; one group each."""
    dealt = random.Random(1).sample(range(len(samples)), len(samples))
    of_group = [[place for place, each in enumerate(samples) if each.uid == uid] for uid in {s.uid: 0 for s in samples}]
    return [[dealt[::2], dealt[1::2]], [[place] for place in dealt], of_group]


@pytest.fixture(scope="module")
def model() -> PositionwiseModel:
    return PositionwiseModel(in_float64(make_model()), share_prefixes=True)


def assert_uncut(model: PositionwiseModel, **sections: object) -> None:
    samples, loss = minibatch(**sections)
    expected, whole = gradients(model, samples, loss, [[*range(len(samples))]])
    assert max(float(value.abs().max()) for value in expected) > 1e-6
    for packs in cuts(samples):
        found, metrics = gradients(model, samples, loss, packs)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
        assert metrics == pytest.approx(whole, rel=1e-8, abs=1e-10)


FURTHER = {"rft": {"rft_threshold": 0.5}}
NAMES = [name for name, preset in PRESETS.items() if preset.family in ("policy", "preference") or name == "rft"]


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", NAMES)
def test_splitting_into_micro_batches_does_not_change_algorithms(model: PositionwiseModel, name: str) -> None:
    penalties = {} if PRESETS[name].feed == "pairs" else {"use_kl_loss": True, "kl_loss_coef": 0.1}
    actor = {"entropy_coeff": 0.05, **penalties}
    assert_uncut(model, algorithm={"name": name, **FURTHER.get(name, {})}, actor=actor)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("loss", sorted({"vanilla", "gspo", "kl_cov"}))
def test_splitting_into_micro_batches_does_not_change_aggregations(
    model: PositionwiseModel, loss: str, mode: str
) -> None:
    assert_uncut(model, actor={"policy_loss": {"loss_mode": loss}, "loss_agg_mode": mode})


@pytest.mark.slow
@pytest.mark.parametrize("loss", sorted(set(POLICY_LOSSES.names()) - {preset.loss for preset in PRESETS.values()}))
def test_splitting_into_micro_batches_does_not_change_losses_without_preset(
    model: PositionwiseModel, loss: str
) -> None:
    assert_uncut(model, actor={"policy_loss": {"loss_mode": loss}})


@pytest.mark.parametrize("settings", [{"length_normalized": True}, {"pairing": "best_random"}])
def test_splitting_into_micro_batches_does_not_change_preference_options(
    model: PositionwiseModel, settings: dict[str, object]
) -> None:
    assert_uncut(model, algorithm={"name": "online_dpo", **settings})
