"""At which tokens a reward model is trained, and its target there."""

from __future__ import annotations

import pytest

from agentrl.algos.reward_model.samples import read_ends, read_turns, reading
from agentrl.errors import DataError
from agentrl.types.rollout import Group, Rollout, Stop, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory


def trajectory(*turns: int) -> Trajectory:
    """A prompt [1 2], then turns of the given lengths with one tool token after each."""
    segments = [Segment(Author.PROMPT, [1, 2])]
    for number, length in enumerate(turns):
        segments += [Segment(Author.DEMONSTRATION, [5 + number] * length), Segment(Author.TOOL, [9])]
    return Trajectory(segments[:-1])


def group(*rollouts: Rollout) -> Group:
    return Group(Task([], uid="g"), list(rollouts))


def test_reward_sample_equals_the_worked_example():
    sample = reading([5, 6, 7, 8, 9], {2: 1.0, 4: 0.5})
    assert sample.token_ids == [5, 6, 7, 8, 8]
    assert sample.loss_mask == [0, 0, 1, 0, 1]
    assert sample.returns == [0, 0, 1, 0, 0.5]


def test_the_end_of_the_last_trajectory_is_read():
    rollout = Rollout([trajectory(3), trajectory(2)], Stop.FINISHED, {"score": 0.25})
    (sample,) = read_ends([group(rollout)], "score", "bce")
    assert sample.token_ids == [1, 2, 5, 5, 5]
    assert sample.loss_mask == [0, 0, 0, 0, 1]
    assert sample.returns[-1] == 0.25
    assert (sample.uid, sample.rollout_id) == ("g", "g/0")


def test_failed_rollouts_are_not_trained_on():
    failed = Rollout([trajectory(1)], Stop.FINISHED, infra_failed=True)
    assert read_ends([group(failed)], "score") == []


def test_missing_outcome_is_named():
    with pytest.raises(DataError, match=r"rollout g/0 has no reward 'rule'.*it has score"):
        read_ends([group(Rollout([trajectory(1)], Stop.FINISHED, {"score": 1.0}))], "rule")


def test_label_that_does_not_fit_the_loss_is_refused():
    groups = [group(Rollout([trajectory(1)], Stop.FINISHED, {"score": 3.0}))]
    with pytest.raises(DataError, match=r"g/0: the label 3 is not a probability: .*loss=mse"):
        read_ends(groups, "score", "bce")
    assert read_ends(groups, "score", "mse")[0].returns[-1] == 3


def steps(*rewards: TurnReward) -> Group:
    return group(Rollout([trajectory(2, 1, 1)], Stop.FINISHED, {"score": 1.0}, turn_rewards=list(rewards)))


def test_turns_are_read_where_they_end():
    (sample,) = read_turns([steps(TurnReward(0, 1, "ok", 1.0), TurnReward(0, 3, "ok", 0.0))], None, "bce")
    # prompt 1 2, turn 5 5, tool 9, turn 6, and a filler token that the model never reads
    assert sample.token_ids == [1, 2, 5, 5, 9, 6, 6]
    assert sample.loss_mask == [0, 0, 0, 0, 1, 0, 1]
    assert sample.returns == [0, 0, 0, 0, 1, 0, 0]


def test_rewards_of_a_turn_are_added_up_or_chosen_by_name():
    rewards = TurnReward(0, 1, "ok", 1.0), TurnReward(0, 1, "brief", 2.0), TurnReward(0, 3, "brief", 1.0)
    (every,), (one,) = (read_turns([steps(*rewards)], name, "mse") for name in (None, "ok"))
    assert [value for value, read in zip(every.returns, every.loss_mask, strict=True) if read] == [3, 1]
    assert one.returns == [0, 0, 0, 0, 1]


def test_missing_labels_are_reported():
    with pytest.raises(DataError, match="none of these rollouts has turn rewards called 'ok'"):
        read_turns([steps(TurnReward(0, 1, "brief", 1.0))], "ok", "bce")
