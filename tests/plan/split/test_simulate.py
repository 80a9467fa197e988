"""The simulated run: the real loop, sources and admission, against hand counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from test_replica import Linear

from agentrl.plan.lengths import LengthsConfig, RolloutLengths, Spread, Turn
from agentrl.plan.split.setting import Setting
from agentrl.plan.split.simulate import simulate
from agentrl.types.sample import Sample

EVEN = Setting(groups_per_step=4, group_size=2, max_running=64)
TAIL = LengthsConfig(
    prompt_tokens=Spread(mean=50),
    turns=Spread(mean=3, p95=6),
    turn_tokens=Spread(mean=100, p95=300),
    tool_s=Spread(mean=3, p95=10),
)


class Fixed:
    """Each rollout samples 10 tokens and waits for a tool of 5 s; then it samples 10 more."""

    def group(self, number: int, size: int) -> Sequence[RolloutLengths]:
        turns = Turn(20, 20, 10, 5.0), Turn(40, 10, 10)
        return [RolloutLengths(turns, (50,), 20)] * size


class Learner:
    def __init__(self, seconds: float, scored: float = 0.0) -> None:
        self.seconds, self.scored = seconds, scored

    def score_s(self, samples: Sequence[Sample]) -> float:
        return self.scored

    def learn_s(self, samples: Sequence[Sample]) -> float:
        return self.seconds


def test_phases_follow_one_another_without_staleness():
    """10 s of decoding, 5 s of a tool, 10 s of decoding, then 3 s to score, 7 s to learn, 2 s to publish, 1 s else."""
    setting = replace(EVEN, publish_s=2.0, other_s=1.0)
    split = simulate(Fixed(), Linear(fixed=1), Learner(7, scored=3), setting, 3)
    assert split.step_s == pytest.approx(25 + 3 + 7 + 2 + 1)
    assert split.trainer_idle == pytest.approx(25 / 38)
    assert split.engine_idle == pytest.approx(1 - 20 / 38)
    assert (split.learn_s, split.score_s) == pytest.approx((7, 3))
    assert (split.staleness, split.tokens_per_step, split.wasted) == ({0: 1.0}, 8 * 50, 0)


def test_a_step_takes_the_longer_side_with_staleness():
    slow_engine = simulate(Fixed(), Linear(fixed=1), Learner(7), replace(EVEN, max_staleness=1), 6)
    slow_trainer = simulate(Fixed(), Linear(fixed=1), Learner(60), replace(EVEN, max_staleness=1), 6)
    assert slow_engine.step_s < 25 + 7
    assert slow_trainer.step_s == pytest.approx(60, rel=0.02)
    assert slow_trainer.trainer_idle < 0.02
    assert slow_trainer.mean_staleness == pytest.approx(1, abs=0.3)


def test_more_staleness_makes_a_long_tail_faster_and_older():
    found = [simulate(TAIL, Linear(fixed=0.01), Learner(2), replace(EVEN, max_staleness=s)) for s in (0, 1, 3)]
    speeds, ages = [each.steps_per_s for each in found], [each.mean_staleness for each in found]
    assert speeds == sorted(speeds)
    assert ages == sorted(ages)
    assert all(max(each.staleness) <= limit for each, limit in zip(found, (0, 1, 3), strict=True))
    assert found[2].partial > 0


def test_over_sampling_leaves_the_slowest_out():
    plain, more = (simulate(TAIL, Linear(fixed=0.01), Learner(2), replace(EVEN, over_sampling=o)) for o in (0.0, 1.0))
    assert more.step_s < plain.step_s
    assert (plain.wasted, plain.requeued) == (0, 0)
    assert more.wasted > 0
    assert more.requeued > 0


def test_sharing_devices_costs_time():
    alone = simulate(Fixed(), Linear(fixed=1), Learner(20), replace(EVEN, max_staleness=1), 6)
    contended = simulate(
        Fixed(), Linear(fixed=1), Learner(20), replace(EVEN, max_staleness=1, contention=(2.0, 1.5)), 6
    )
    exclusive = simulate(Fixed(), Linear(fixed=1), Learner(20), replace(EVEN, max_staleness=1, exclusive=True), 6)
    assert alone.step_s < contended.step_s
    assert alone.step_s < exclusive.step_s
    assert exclusive.engine_idle >= 20 / exclusive.step_s - 0.05


def test_concurrency_is_bounded():
    setting = replace(EVEN, max_concurrent=2)
    assert simulate(Fixed(), Linear(fixed=1), Learner(0), setting, 2).step_s == pytest.approx(4 * 25)


def test_two_replicas_are_faster_when_decoding_costs_per_request():
    one, two = (simulate(Fixed(), Linear(row=1), Learner(0), replace(EVEN, num_replicas=n), 2) for n in (1, 2))
    assert one.step_s == pytest.approx(8 * 10 * 2 + 5)
    assert two.step_s == pytest.approx(4 * 10 * 2 + 5)


def test_the_same_arguments_have_the_same_result():
    first, second = (simulate(TAIL, Linear(fixed=0.01), Learner(2), replace(EVEN, max_staleness=2)) for _ in range(2))
    assert first == second
