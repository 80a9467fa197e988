"""Turn rewards, observation keys and named rewards reach the right token, turn and rollout."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.credit import samples_of, turn_credit
from agentrl.errors import RewardError
from agentrl.types.rollout import GUARD, Group, Rollout, Stop, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

PROMPT, MODEL, TOOL, USER = Author.PROMPT, Author.MODEL, Author.TOOL, Author.USER


def segment(author: Author, num_tokens: int) -> Segment:
    if author is not MODEL:
        return Segment(author, [7] * num_tokens)
    return Segment(author, [8] * num_tokens, [-1.0] * num_tokens, [VersionSpan(0, num_tokens)])


def conversation(*parts: tuple[Author, int]) -> Trajectory:
    return Trajectory([segment(author, num_tokens) for author, num_tokens in parts])


def worked_example() -> Trajectory:
    return conversation((PROMPT, 2), (MODEL, 2), (TOOL, 1), (MODEL, 1))


def rollout(*trajectories: Trajectory, turns=(), stop=Stop.FINISHED, **rewards: float) -> Rollout:
    return Rollout(list(trajectories), stop, {"score": 1.0, **rewards}, turn_rewards=list(turns))


def group(uid: str, *rollouts: Rollout) -> Group:
    return Group(Task([], uid=uid), list(rollouts))


def of(*groups: Group):
    return turn_credit(groups, samples_of(groups))


def test_a_turn_reward_is_on_the_last_token_of_its_turn():
    turns = [TurnReward(0, 1, "call", 0.5, "start"), TurnReward(0, 3, "answer", 0.25)]
    found = of(group("a", rollout(worked_example(), turns=turns)))
    assert found.turn_rewards.tolist() == [[0, 0, 0, 0.5, 0, 0.25]]
    assert found.step_ends.tolist() == [[False, False, False, True, False, True]]
    assert found.observation_keys == [["start", None]]


def test_rewards_of_tool_answers_belong_to_their_turn_and_add_up():
    turns = [
        TurnReward(0, 2, "tool", 2.0, "key"),
        TurnReward(0, 1, "call", 0.5),
        TurnReward(0, 1, "form", 0.0, "other"),
    ]
    found = of(group("a", rollout(worked_example(), turns=turns)))
    assert found.turn_rewards.tolist() == [[0, 0, 0, 2.5, 0, 0]]
    assert found.observation_keys == [["key", None]]


def test_step_with_reward_0_counts():
    found = of(group("a", rollout(worked_example(), turns=[TurnReward(0, 1, "call", 0.0)])))
    assert found.turn_rewards.sum() == 0
    assert found.step_ends.sum() == 1


def test_no_turn_rewards_without_a_source():
    found = of(group("a", rollout(worked_example())))
    assert (found.turn_rewards, found.step_ends, found.observation_keys) == (None, None, [[None, None]])
    assert of().observation_keys == []


def test_turn_rewards_are_placed_only_in_rows_with_samples():
    silent, failed = conversation((PROMPT, 3)), rollout(worked_example(), stop=Stop.ERROR)
    failed.turn_rewards = [TurnReward(9, 9, "lost", 1.0)]  # no code reads it
    turns = [TurnReward(0, 1, "first", 1.0), TurnReward(2, 3, "third", 3.0), TurnReward(1, 0, "nobody's", 5.0)]
    several = rollout(worked_example(), silent, worked_example(), turns=turns)
    found = of(group("a", failed, several), group("b", rollout(worked_example())))
    assert found.turn_rewards.tolist() == [[0, 0, 0, 1.0, 0, 0], [0, 0, 0, 0, 0, 3.0], [0] * 6]


def test_turn_credit_accepts_missing_rollouts_but_not_missing_parts():
    turns = [TurnReward(0, 1, "call", 0.5)]
    groups = [group("a", rollout(worked_example(), turns=turns), rollout(worked_example(), worked_example()))]
    samples = samples_of(groups)
    assert turn_credit(groups, samples[1:]).turn_rewards is None
    with pytest.raises(ValueError, match="zip"):
        turn_credit(groups, samples[:2])


@pytest.mark.parametrize("address", [(1, 0), (0, 4), (-1, 0), (0, -1)])
def test_invalid_address_is_named(address):
    with pytest.raises(
        RewardError, match=f"rollout a/0: the turn reward 'x' refers to segment {address[1]} of trajectory"
    ):
        of(group("a", rollout(worked_example(), turns=[TurnReward(*address, "x", 1.0)])))


def test_turn_rewards_belong_to_their_trajectory():
    copied = conversation((PROMPT, 2), (PROMPT, 2), (TOOL, 1), (MODEL, 1))
    found = of(group("a", rollout(copied, turns=[TurnReward(0, 1, "x", 1.0), TurnReward(0, 2, "x", 1.0)])))
    assert found.turn_rewards is None


def test_named_rewards_belong_to_the_rollout_of_each_row():
    two = rollout(worked_example(), worked_example(), form=0.5, **{f"{GUARD}repetition": 1.0})
    found = of(group("a", two, rollout(worked_example(), score=0.25)))
    assert {name: values.tolist() for name, values in found.components.items()} == {
        "score": [1.0, 1.0, 0.25],
        "form": [0.5, 0.5, 0.0],
    }


@given(st.integers(0, 2**32))
def test_every_reward_of_a_trained_turn_arrives_once_and_off_the_mask_there_is_nothing(seed):
    chance = random.Random(seed)
    groups = [group(str(uid), *[_any_rollout(chance) for _ in range(chance.randint(1, 3))]) for uid in range(2)]
    samples = samples_of(groups)
    found = turn_credit(groups, samples)
    expected = sum(
        reward.value
        for each in groups
        for rollout in each.rollouts
        for reward in rollout.turn_rewards
        if rollout.valid and MODEL in _authors(rollout, reward)
    )
    total = 0.0 if found.turn_rewards is None else float(found.turn_rewards.double().sum())
    assert total == expected
    width = max((len(sample.loss_mask) for sample in samples), default=0)
    mask = torch.tensor([[*each.loss_mask, *[0] * (width - len(each.loss_mask))] for each in samples])
    if found.turn_rewards is not None:
        assert not found.turn_rewards[mask == 0].any()
        assert not found.step_ends[mask == 0].any()
        assert found.step_ends[found.turn_rewards != 0].all()
    for sample, keys in zip(samples, found.observation_keys, strict=True):
        text = "".join(map(str, sample.loss_mask))
        assert len(keys) == len([run for run in text.split("0") if run])


def _any_rollout(chance: random.Random) -> Rollout:
    trajectories = [
        conversation((PROMPT, 1), *[(chance.choice([MODEL, TOOL, USER]), chance.randint(1, 3)) for _ in range(5)])
        for _ in range(chance.randint(1, 3))
    ]
    turns = [
        TurnReward(chance.randrange(len(trajectories)), chance.randrange(6), "x", chance.randint(1, 100) / 4, "key")
        for _ in range(chance.randint(0, 4))
    ]
    return rollout(*trajectories, turns=turns, stop=chance.choice([Stop.FINISHED, Stop.ERROR]))


def _authors(rollout: Rollout, reward: TurnReward) -> list[Author]:
    return [each.author for each in rollout.trajectories[reward.trajectory].segments[: reward.segment + 1]]
