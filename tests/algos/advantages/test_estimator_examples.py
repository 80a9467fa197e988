"""The worked examples in the estimators' docstrings, and the inputs that estimators refuse."""

from __future__ import annotations

import pytest
import torch

from agentrl.algos import estimate_advantages
from agentrl.errors import ConfigError

Rows = list[list[float]]


def estimated(name: str, rewards: Rows, **given: object) -> Rows:
    """Every token is trained, and all rows belong to one group; float64."""
    tensor = torch.tensor(rewards, dtype=torch.float64)
    given = {"loss_mask": torch.ones_like(tensor).bool(), "uids": ["a"] * len(rewards), **given}
    return estimate_advantages(name, tensor, **given)[0].tolist()  # type: ignore[arg-type]  # by name


def outcome(name: str, rewards: list[float], **given: object) -> list[float]:
    return [row[0] for row in estimated(name, [[reward] for reward in rewards], **given)]


def near(*expected: float) -> object:
    return pytest.approx(list(expected), abs=1e-3)


def float64(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_outcome_estimators_equal_worked_examples():
    assert outcome("grpo", [1, 0, 0, 1]) == near(0.8660, -0.8660, -0.8660, 0.8660)
    assert outcome("dr_grpo", [1, 0, 0, 1]) == near(0.5, -0.5, -0.5, 0.5)
    assert outcome("grpo_passk", [1, 0.4, 0, 0]) == near(1.2695, 0, 0, 0)
    assert outcome("grpo_passk", [1, 1, 0]) == [0, 0, 0]
    assert outcome("rloo", [1, 0, 0.5]) == near(0.75, -0.75, 0)
    assert outcome("gpg", [1, 0, 1, 1], uids=list("aabb")) == near(1, -1, 0, 0)
    assert outcome("reinforce_plus_plus_baseline", [1, 0]) == near(0.7071, -0.7071)


def test_opo_baseline_weights_rollouts_by_length():
    mask = torch.tensor([[True, False, False], [True, True, True]])
    assert estimated("opo", [[1, 0, 0], [0, 0, 0]], loss_mask=mask) == [[0.75, 0, 0], [-0.25, -0.25, -0.25]]


def test_gdpo_normalises_rewards_separately():
    rewards = {"score": float64([1, 0, 2]), "one": float64([1, 0, 1]), "two": float64([0, 0, 1])}
    assert outcome("gdpo", [1, 0, 2], components=rewards) == near(0, -1, 1)
    alone = outcome("gdpo", [1, 0, 2], components=rewards, gdpo_reward_keys=["one"])
    assert alone == near(0.5774, -1.1547, 0.5774)
    assert outcome("gdpo", [1, 0, 2]) == near(0, -1, 1)  # the score only


def test_token_estimators_equal_worked_examples():
    assert outcome("remax", [1, 0], baselines=float64([0.25, 0.25])) == [0.75, -0.25]
    assert outcome("reinforce_plus_plus", [1, 0]) == near(0.7071, -0.7071)
    values = float64([[0.5, 0.6]])
    assert estimated("gae", [[0, 1]], values=values, lam=0.5, whiten=False)[0] == near(0.3, 0.4)
    assert estimate_advantages("gae", float64([[0, 1]]), float64([[1, 1]]), ["a"], values=values, lam=0.5)[1].tolist()[
        0
    ] == near(0.8, 1)


TWO_TURNS = torch.tensor([[True, False, True]] * 2)


def test_step_returns_include_later_steps():
    assert estimated(
        "grpo_process", [[0, 0], [0, 0]], turn_rewards=float64([[1, 0], [0, 0]]), step_ends=float64([[1, 1]] * 2)
    ) == [
        near(1, -0.5),
        near(-1, -0.5),
    ]
    # two turns of the first rollout, one of the second; then steps within one turn
    turns = {"loss_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]), "turn_rewards": float64([[1, 0, 0], [0, 0, 0]])}
    assert estimated("grpo_process", [[0, 0, 0]] * 2, **turns) == [near(0.5774, 0, -0.5774), near(*[-0.5774] * 3)]


def test_turn_estimators_equal_worked_examples():
    first_turn = float64([[1, 0, 0], [0, 0, 0]])
    found = estimated("grpo_turn", [[0, 0, 1], [0, 0, 0]], loss_mask=TWO_TURNS, turn_rewards=first_turn, gamma=0.5)
    assert found == [near(1.1667, 0, 0.5), near(-0.8333, 0, -0.8333)]
    found = estimated("mt_grpo", [[0, 0, 0], [0, 0, 1]], loss_mask=TWO_TURNS, turn_rewards=first_turn)
    assert found == [near(0, 0, -0.7071), near(0, 0, 0.7071)]


def test_turns_from_the_same_state_are_compared():
    keys = [["a", "b"], ["a", "c"]]
    given = {"loss_mask": TWO_TURNS, "gamma": 0.5, "norm_adv_by_std": False}
    found = estimated("gigpo", [[0, 0, 1], [0, 0, 0]], observation_keys=keys, **given)
    assert found == [near(0.75, 0, 0.5), near(-0.75, 0, -0.5)]
    unknown = estimated("gigpo", [[0, 0, 1], [0, 0, 0]], observation_keys=[[None, None]] * 2, **given)
    assert unknown == [near(0.5, 0, 0.5), near(-0.5, 0, -0.5)]
    # a rollout that visits a state twice is also compared with itself, as in the paper
    twice = estimated("gigpo", [[0, 0, 1], [0, 0, 0]], observation_keys=[["a", "a"], ["b", "c"]], **given)
    assert twice[0] == near(0.5 - 0.25, 0, 0.5 + 0.25)


def test_a_reward_after_the_last_trained_token_is_not_lost():
    """A rollout that was cut off after a tool's answer."""
    mask = torch.tensor([[True, True, False], [True, True, True]])
    for name, given in (("reinforce_plus_plus", {}), ("gae", {"values": torch.zeros(2, 3)}), ("grpo_turn", {})):
        after = estimated(name, [[0, 0, 1], [0, 0, 0]], loss_mask=mask, **given)
        assert after == estimated(name, [[0, 1, 0], [0, 0, 0]], loss_mask=mask, **given)
        assert after[0][1] > 0


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("gae", {}, "'gae' needs the values of a critic"),
        ("remax", {}, "'remax' needs baselines"),
        ("gigpo", {}, "'gigpo' needs observation_keys"),
        ("gigpo", {"observation_keys": [["a"], ["a", "b"]]}, "2 keys for the 1 turns of row 1"),
        ("gdpo", {"gdpo_reward_keys": ["exakt"], "components": {"exact": float64([1, 0])}}, "did you mean 'exact'"),
        ("gdpo", {"gdpo_reward_weights": [1, 2], "components": {"exact": float64([1, 0])}}, "2 weights for 1 rewards"),
        ("gdpo", {"components": {"exact": float64([1, torch.nan])}}, r"'exact' of row 1 \(task 'a'\) is nan"),
        ("rloo", {"gamma": 0.9}, "has no option 'gamma'"),
    ],
)
def test_missing_inputs_are_named(name: str, given: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        outcome(name, [1, 0], **given)


def test_custom_estimator_takes_five_lines():
    from agentrl.algos.advantages.members import find_members
    from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS

    @ADVANTAGE_ESTIMATORS.register("raw_reward")
    def raw_reward(batch, *, scale=1.0):
        members = find_members(batch)
        advantages = members.spread(scale * members.scores, batch.loss_mask)
        return advantages, advantages

    assert outcome("raw_reward", [1, 0.5], scale=2.0) == [2, 1]
    del ADVANTAGE_ESTIMATORS._objects["raw_reward"]
