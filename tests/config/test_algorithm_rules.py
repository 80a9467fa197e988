"""Options that an algorithm does not support are refused by key."""

from __future__ import annotations

from typing import Any

import pytest
from complaints import keys_and_kinds, problems_of

from agentrl.errors import Kind

REINFORCE = {"rollout_correction": {"loss_type": "reinforce"}}


@pytest.mark.parametrize(("name", "refused"), [("pairwise", True), ("ranking", True), ("grpo", False), ("rft", False)])
def test_weights_of_trajectories_need_an_estimator_that_reads_them(name: str, refused: bool) -> None:
    rollout = {"n": 2, "gateway": {"credit": "per_trajectory"}}
    problems = keys_and_kinds(problems_of(algorithm={"name": name}, rollout=rollout))
    assert (("rollout.gateway.credit", Kind.UNUSED) in problems) == refused


@pytest.mark.parametrize(
    ("algorithm", "actor", "expected"),
    [
        ({"name": "pairwise"}, {"loss_agg_mode": "seq-mean-token-sum"}, ("actor.loss_agg_mode", Kind.UNUSED)),
        ({"name": "rft"}, {"loss_agg_mode": "seq-mean-token-sum"}, None),
        ({"name": "ranking"}, {"policy_loss": {"loss_mode": "pairwise"}}, ("actor.policy_loss.loss_mode", Kind.UNUSED)),
        ({"name": "pairwise"}, {"policy_loss": {"loss_mode": "ranking"}}, ("actor.policy_loss.loss_mode", Kind.UNUSED)),
        ({"name": "pairwise"}, {"policy_loss": {"loss_mode": "dpo"}}, None),
        ({"name": "gdpo", "use_kl_in_reward": True}, {}, ("algorithm.use_kl_in_reward", Kind.UNUSED)),
        ({"name": "rloo", "use_kl_in_reward": True}, {}, None),
        ({"name": "gspo", **REINFORCE}, {}, ("algorithm.name", Kind.UNUSED)),
        (REINFORCE, {"policy_loss": {"options": {"a": 1}}}, ("actor.policy_loss.options", Kind.UNUSED)),
        ({"name": "rloo", **REINFORCE}, {}, None),
    ],
)
def test_options_without_effect_are_refused(
    algorithm: dict[str, Any], actor: dict[str, Any], expected: tuple[str, Kind] | None
) -> None:
    problems = keys_and_kinds(problems_of(algorithm=algorithm, actor=actor))
    assert expected in problems if expected else problems == set()
