"""Credit of rollouts with several trajectories, from real rollouts of `compaction` and `sub_agent`.

The expected advantages are computed here from the formulas, with plain numbers.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from loop_builders import TASK, ListEngine, call, config, roll
from test_compaction import ADD, compacting
from test_sub_agent import Scripted, delegating, two_agents

from agentrl.algos.credit import compare, samples_of
from agentrl.types.rollout import Group, Rollout, Stop, TurnReward

REWARDS = [1.0, 0.0, 0.25]


def group(*rollouts: Rollout) -> Group:
    for rollout, reward in zip(rollouts, REWARDS, strict=True):
        rollout.rewards = {"score": reward}
    return Group(TASK, list(rollouts))


@pytest.fixture(params=["compaction", "sub_agent"])
def groups(request) -> list[Group]:
    """One rollout of three trajectories, and two of one."""
    if request.param == "compaction":
        long = compacting(ADD, "so", ADD, "more", "5")[1]
    else:
        long = delegating(Scripted(two_agents))
    assert len(long.trajectories) == 3
    others = [roll(ListEngine("5"), config()), roll(ListEngine(call("add", a=1, b=2), "It is 3"), config())]
    return [group(long, *others)]


def trained(rollout: Rollout) -> int:
    """Number of sampled tokens."""
    return sum(sum(each.loss_mask) for each in rollout.trajectories)


def credited(groups, estimator, values=None, **options):
    """The advantages of the trained tokens of each rollout, in the order of its trajectories."""
    samples = samples_of(groups)
    if values is not None:
        samples = [replaced(sample, values) for sample in samples]
    samples = compare(groups, samples, estimator, options)
    found: dict[str, list[float]] = {}
    for sample in samples:
        own = [a for a, mask in zip(sample.advantages, sample.loss_mask, strict=True) if mask]
        found.setdefault(sample.rollout_id, []).extend(own)
        assert not any(a for a, mask in zip(sample.advantages, sample.loss_mask, strict=True) if not mask)
    return list(found.values())


def replaced(sample, value):
    return replace(sample, values=[value * mask for mask in sample.loss_mask])


def expected_of_rollouts(estimator: str, lengths: list[int]) -> list[float]:
    mean = statistics.fmean(REWARDS)
    if estimator == "grpo":
        return [(r - mean) / (statistics.stdev(REWARDS) + 1e-6) for r in REWARDS]
    if estimator == "rloo":
        return [r - (sum(REWARDS) - r) / 2 for r in REWARDS]
    if estimator == "opo":
        return [r - sum(n * q for n, q in zip(lengths, REWARDS, strict=True)) / sum(lengths) for r in REWARDS]
    centred = [r - mean for r in REWARDS]
    tokens = [value for value, length in zip(centred, lengths, strict=True) for _ in range(length)]
    return [(v - statistics.fmean(tokens)) / (statistics.variance(tokens) + 1e-8) ** 0.5 for v in centred]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_a_rollout_counts_once_and_all_its_tokens_get_its_advantage(groups, estimator):
    lengths = [trained(rollout) for rollout in groups[0].rollouts]
    found = credited(groups, estimator)
    assert [len(each) for each in found] == lengths  # every sampled token is trained once
    for advantages, expected in zip(found, expected_of_rollouts(estimator, lengths), strict=True):
        assert advantages == pytest.approx([expected] * len(advantages), abs=1e-5)


def returns(reward: float, length: int, gamma: float) -> list[float]:
    return [reward * gamma ** (length - 1 - place) for place in range(length)]


def test_discounted_returns_run_over_the_trajectories_to_the_last_answer(groups):
    lengths = [trained(rollout) for rollout in groups[0].rollouts]
    each = [returns(reward, length, 0.9) for reward, length in zip(REWARDS, lengths, strict=True)]
    tokens = [value for row in each for value in row]
    mean, scale = statistics.fmean(tokens), (statistics.variance(tokens) + 1e-8) ** 0.5
    for advantages, row in zip(credited(groups, "reinforce_plus_plus", gamma=0.9), each, strict=True):
        assert advantages == pytest.approx([(value - mean) / scale for value in row], abs=1e-5)


def test_advantages_of_a_critic_run_over_the_trajectories_too(groups):
    """With V = 0.5 everywhere, d_t is -0.05 (gamma 0.9) but r - 0.5 at the end, and A_t = d_t + 0.9 * 0.8 * A_t+1."""
    for rollout, advantages in zip(
        groups[0].rollouts, credited(groups, "gae", values=0.5, gamma=0.9, lam=0.8, whiten=False), strict=True
    ):
        expected = [rollout.reward - 0.5]
        while len(expected) < trained(rollout):
            expected.insert(0, -0.05 + 0.72 * expected[0])
        assert advantages == pytest.approx(expected, abs=1e-5)


def test_a_turn_reward_of_a_sub_agent_reaches_its_trajectory():
    long = delegating(Scripted(two_agents))
    agent = long.trajectories[1]
    assert agent.messages[0]["content"] == "second"
    long.turn_rewards.append(TurnReward(1, 1, "careful", 0.5))
    groups = [group(long, *(roll(ListEngine("5"), config()) for _ in range(2)))]
    before, within, after = (trained(Rollout([each], Stop.FINISHED)) for each in long.trajectories)
    with_turn = credited(groups, "gae", values=0.0, gamma=1.0, lam=1.0, whiten=False)[0]
    first_turn = sum(len(segment) for segment in agent.segments[1:2])
    expected = [1.5] * (before + first_turn) + [1.0] * (within - first_turn + after)
    assert with_turn == pytest.approx(expected)
