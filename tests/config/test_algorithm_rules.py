"""What an algorithm would not honour is refused by key."""

from __future__ import annotations

from typing import Any

import pytest
from complaints import complaint

REINFORCE = {"rollout_correction": {"loss_type": "reinforce"}}


@pytest.mark.parametrize(
    ("algorithm", "actor", "expected"),
    [
        ({"name": "pairwise"}, {"loss_agg_mode": "seq-mean-token-sum"}, "'actor.loss_agg_mode' has no effect"),
        ({"name": "rft"}, {"loss_agg_mode": "seq-mean-token-sum"}, ""),
        ({"name": "ranking"}, {"policy_loss": {"loss_mode": "pairwise"}}, "loss_mode=pairwise' has no effect with"),
        ({"name": "pairwise"}, {"policy_loss": {"loss_mode": "ranking"}}, "loss_mode=ranking' has no effect with"),
        ({"name": "pairwise"}, {"policy_loss": {"loss_mode": "dpo"}}, ""),
        ({"name": "gdpo", "use_kl_in_reward": True}, {}, "'algorithm.use_kl_in_reward' has no effect: gdpo"),
        ({"name": "rloo", "use_kl_in_reward": True}, {}, ""),
        ({"name": "gspo", **REINFORCE}, {}, "'algorithm.name=gspo' has a loss of its own"),
        (REINFORCE, {"policy_loss": {"options": {"a": 1}}}, "'actor.policy_loss.options' has no effect without"),
        ({"name": "rloo", **REINFORCE}, {}, ""),
    ],
)
def test_what_has_no_effect_is_refused(algorithm: dict[str, Any], actor: dict[str, Any], expected: str) -> None:
    said = complaint(algorithm=algorithm, actor=actor)
    assert expected in said if expected else said == ""
