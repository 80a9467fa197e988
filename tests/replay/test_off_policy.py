"""Estimators on a game small enough to enumerate: two turns, an answer between them, tabular policies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
import pytest

from agentrl.replay.logprobs.off_policy import Episode, OffPolicy, effective_number, off_policy

FIRST, ANSWERS, SECOND = range(2), range(2), range(3)


@dataclass(frozen=True)
class Game:
    """One task: an action, an answer, another action. The first is rewarded immediately, the second at the end."""

    sampling: tuple[np.ndarray, np.ndarray]  # [first], [first, answer, second]
    asked: tuple[np.ndarray, np.ndarray]
    answers: np.ndarray  # [first, answer]
    turn_reward: np.ndarray  # [first]
    outcome: np.ndarray  # [first, answer, second]

    def courses(self, policy: tuple[np.ndarray, np.ndarray]) -> Iterator[tuple[float, tuple[int, int, int]]]:
        """Every course with its probability."""
        for a, answer, b in product(FIRST, ANSWERS, SECOND):
            yield float(policy[0][a] * self.answers[a, answer] * policy[1][a, answer, b]), (a, answer, b)

    def value(self) -> float:
        return sum(chance * (self.turn_reward[c[0]] + self.outcome[c]) for chance, c in self.courses(self.asked))

    def episode(self, task: int, course: tuple[int, int, int]) -> Episode:
        first = math.log(self.asked[0][course[0]] / self.sampling[0][course[0]])
        second = math.log(self.asked[1][course] / self.sampling[1][course])
        outcome, turn_reward = float(self.outcome[course]), float(self.turn_reward[course[0]])
        return Episode(task, first + second, outcome + turn_reward, [(first, turn_reward), (first + second, outcome)])


def make_game(random: np.random.Generator, sharpness: float = 8.0) -> Game:
    """Two policies; a larger `sharpness` makes them more similar."""

    def policy() -> tuple[np.ndarray, np.ndarray]:
        return random.dirichlet([sharpness] * 2), random.dirichlet([sharpness] * 3, (2, 2))

    return Game(policy(), policy(), random.dirichlet([1, 1], 2), random.normal(size=2), random.normal(size=(2, 2, 3)))


def play(games: list[Game], random: np.random.Generator, num_tasks: int, num_rollouts: int) -> list[Episode]:
    episodes = []
    for task in range(num_tasks):
        game = games[random.integers(len(games))]
        chances, courses = zip(*game.courses(game.sampling), strict=True)
        for course in random.choice(len(courses), num_rollouts, p=chances):
            episodes.append(game.episode(task, courses[course]))
    return episodes


@pytest.mark.parametrize("seed", range(5))
def test_ordinary_and_per_decision_are_unbiased_exactly(seed):
    """The expectation of the estimate over all courses equals the value exactly, without sampling error."""
    game = make_game(np.random.default_rng(seed), sharpness=1.0)
    found = [(chance, off_policy([game.episode(0, c)])) for chance, c in game.courses(game.sampling)]
    for name in ("ordinary", "per_decision"):
        assert sum(chance * getattr(each, name).value for chance, each in found) == pytest.approx(game.value())
    assert sum(chance * each.mean_ratio.value for chance, each in found) == pytest.approx(1.0)
    assert sum(chance for chance, _ in found) == pytest.approx(1.0)


@pytest.mark.slow
def test_each_estimate_is_its_formula():
    episodes = [
        Episode("a", math.log(2), 4.0, [(math.log(0.5), 3.0), (math.log(2), 1.0)]),
        Episode("a", math.log(0.25), 2.0, [(math.log(0.25), 2.0)]),
        Episode("b", 0.0, 0.5, [(math.log(4), 0.5), (math.log(3), 1.0), (0.0, -1.0)]),
    ]
    found = off_policy(episodes)
    assert found.sampled.value == pytest.approx((4 + 2 + 0.5) / 3)
    assert found.ordinary.value == pytest.approx((2 * 4 + 0.25 * 2 + 0.5) / 3)
    assert found.weighted.value == pytest.approx((2 * 4 + 0.25 * 2 + 0.5) / 3.25)
    assert found.per_decision.value == pytest.approx((2 + 0.5 * 3 + 0.25 * 2 + -1 + 4 * 0.5 + 3) / 3)
    assert found.num_effective == pytest.approx(3.25**2 / (4 + 0.0625 + 1))
    assert (found.num, found.sampled.num, found.by_turn) == (3, 2, True)


def test_turn_rewards_outside_the_score_are_excluded():
    """Training uses the score only. One rollout's turn rewards do not add up to it, so no turn reward is used."""
    parts = Episode("a", math.log(2), 4.0, [(math.log(0.5), 3.0), (math.log(2), 1.0)])
    beside = Episode("b", math.log(0.5), 1.0, [(math.log(3), 7.0)])
    found = off_policy([parts, beside])
    assert found.sampled.value == pytest.approx((4 + 1) / 2)
    assert found.ordinary.value == found.per_decision.value == pytest.approx((2 * 4 + 0.5 * 1) / 2)
    assert (found.by_turn, off_policy([parts]).by_turn) == (False, True)


@pytest.mark.slow
def test_too_few_effective_rollouts_have_no_interval():
    """Weights 1, 1/2, 1/4, ...: the effective number of 40 rollouts is (2 - 2^-39)^2 / (4/3) = 3."""
    found = off_policy([Episode(task, -task * math.log(2), float(task % 2)) for task in range(40)])
    assert found.num_effective == pytest.approx(3)
    assert found.too_few
    asked = (found.ordinary, found.weighted, found.per_decision, found.mean_ratio)
    assert [(each.low, each.high) for each in asked] == [(None, None)] * 4
    assert found.sampled.low < found.sampled.value < found.sampled.high
    assert found.uncovered  # the mean ratio is 2 / 40
    near = off_policy([Episode(task, 0.01 * (task % 2), float(task % 3)) for task in range(40)])
    assert not near.too_few
    assert near.weighted.low < near.weighted.value < near.weighted.high


def test_all_zero_rewards_estimate_zero():
    found = off_policy([Episode(task, 0.0, 0.0) for task in range(3)])
    assert (found.per_decision.value, found.by_turn) == (0.0, True)


def test_same_policy_is_estimated_at_the_sampled_reward():
    episodes = [Episode(task, 0.0, task % 3 + 0.5, [(0.0, 0.5), (0.0, float(task % 3))]) for task in range(9)]
    found = off_policy(episodes)
    assert found.ordinary.value == found.weighted.value == found.per_decision.value == found.sampled.value
    assert found.num_effective == 9


@pytest.mark.slow
def test_weighted_estimate_converges_and_turn_rewards_ignore_later_turns():
    random = np.random.default_rng(0)
    games = [make_game(random, sharpness=3.0) for _ in range(4)]
    truth = fmean(game.value() for game in games)
    found = off_policy(play(games, random, 2000, 1))
    assert found.weighted.value == pytest.approx(truth, abs=0.15)
    assert width(found, "per_decision") < width(found, "ordinary")


def width(found: OffPolicy, name: str) -> float:
    estimate = getattr(found, name)
    return estimate.high - estimate.low


def covered(num: int) -> dict[str, float]:
    random = np.random.default_rng(3)
    games = [make_game(random) for _ in range(6)]
    truth = fmean(game.value() for game in games)
    found = [off_policy(play(games, random, 80, 4), seed=seed) for seed in range(num)]
    names = ("ordinary", "weighted", "per_decision")
    return {name: fmean(getattr(f, name).low <= truth <= getattr(f, name).high for f in found) for name in names}


@pytest.mark.nightly
@pytest.mark.slow
def test_intervals_hold_the_value_in_95_of_100_runs():
    # 150 runs have a standard error of 0.018
    assert covered(150) == pytest.approx({"ordinary": 0.95, "weighted": 0.95, "per_decision": 0.95}, abs=0.05)


def test_overflowing_ratios_are_reported():
    episodes = [Episode(t, 400.0 * t, 2.0 + t, [(-3000.0, 1.0), (400.0 * t, 1.0 + t)]) for t in range(4)]
    found = off_policy(episodes)
    assert found.ordinary is None
    assert found.per_decision is None
    assert found.mean_ratio is None
    assert found.weighted.value == pytest.approx(5.0)
    assert found.num_effective == pytest.approx(1.0)


@pytest.mark.slow
def test_tiny_ratios_underflow_to_zero_reward():
    found = off_policy([Episode(task, -2000.0, 1.0) for task in range(3)])
    assert found.ordinary.value == 0.0
    assert found.weighted.value == 1.0
    assert effective_number(np.full(3, -2000.0)) == pytest.approx(3.0)
