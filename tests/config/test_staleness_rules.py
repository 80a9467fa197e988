"""Staleness keys are refused where they have no effect."""

from __future__ import annotations

import pytest

from agentrl.config import validate_config
from agentrl.config.rules.combinations import check_training
from agentrl.errors import ConfigError

LIVE = {"model": {"path": "m"}, "data": {"train_files": ["t.jsonl"]}, "rollout": {"n": 2}}


def checked(rollout=None, algorithm=None, **trainer):
    config = {**LIVE, "rollout": {**LIVE["rollout"], **(rollout or {})}, "trainer": trainer}
    if algorithm:
        config |= {"algorithm": {"name": algorithm}, "rollout": rollout or {}}
    check_training(validate_config(config))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "rollout_only", "max_staleness": 2}, "'trainer.max_staleness' has no effect without 'trainer.mode"),
        ({"mode": "val_only", "over_sampling": 0.5}, "'trainer.over_sampling' has no effect without 'trainer.mode"),
        (
            {"mode": "train_only", "saved_rollouts": "r", "max_staleness": 1},
            "'trainer.max_staleness' has no effect without 'trainer.mode=train'",
        ),
        ({"algorithm": "sft", "max_staleness": 1}, "'trainer.max_staleness' has no effect without live rollouts"),
        ({"rollout": {"weight_update_mode": "drain"}}, "'rollout.weight_update_mode' has no effect without"),
    ],
)
def test_options_without_effect_are_refused(options, told):
    with pytest.raises(ConfigError, match=told):
        checked(**options)


@pytest.mark.parametrize("trainer", [{"max_staleness": 2}, {"over_sampling": 0.5}])
def test_rollouts_in_flight_allow_a_weight_update_mode(trainer):
    checked({"weight_update_mode": "drain"}, **trainer)


@pytest.mark.parametrize("trainer", [{"max_staleness": -1}, {"over_sampling": -0.1}])
def test_staleness_and_over_sampling_must_not_be_negative(trainer):
    with pytest.raises(ConfigError, match="trainer"):
        checked(**trainer)
