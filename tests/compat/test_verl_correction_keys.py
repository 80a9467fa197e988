"""verl's off-policy correction: the meaning of key combinations; keys without effect are dropped with a notice."""

from __future__ import annotations

import pytest
from test_verl_keys import ACTOR, config_of, notices_of

from agentrl.config.algorithm import RolloutCorrectionConfig
from agentrl.errors import ConfigError

SECTION = "algorithm.rollout_correction"


def said(**keys: object) -> dict[str, object]:
    return {f"{SECTION}.{key}": value for key, value in keys.items()}


@pytest.mark.parametrize(
    ("given", "section"),
    [
        ({}, {}),
        # verl's default YAML
        (said(rollout_is=None, rollout_rs=None, rollout_is_threshold=2.0, loss_type="ppo_clip"), {}),
        (said(bypass_mode=False), {"bypass_mode": False}),
        (said(rollout_is="token", rollout_is_threshold=3), {"bypass_mode": False, "rollout_is": "token"}),
        (said(rollout_is="sequence", rollout_is_batch_normalize=True), {"rollout_is_batch_normalize": True}),
        (said(rollout_rs="seq_mean_k3", rollout_rs_threshold=0.1), {"bypass_mode": False, "rollout_rs_threshold": 0.1}),
        (said(bypass_mode=True, rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0"), {"bypass_mode": True}),
        (said(bypass_mode=True, loss_type="reinforce", rollout_is="token"), {"rollout_is": "token"}),
        (
            {f"{ACTOR}.tis_imp_ratio_cap": 2.5},
            {"rollout_is": "token", "rollout_is_threshold": 2.5, "bypass_mode": False},
        ),
        ({f"{ACTOR}.tis_imp_ratio_cap": -1}, {}),
    ],
)
def test_the_keys_mean_what_they_mean_in_verl(given: dict[str, object], section: dict[str, object]) -> None:
    found = config_of(**given).algorithm.rollout_correction
    assert section.items() <= found.model_dump().items()
    if not section:
        assert found == RolloutCorrectionConfig()


@pytest.mark.parametrize(
    ("given", "notice"),
    [
        (said(rollout_is_threshold=3.0), f"'{SECTION}.rollout_is_threshold' is ignored: no effect without"),
        (said(rollout_rs_threshold=3.0), f"'{SECTION}.rollout_rs_threshold' is ignored: no effect without"),
        (said(bypass_mode=True, rollout_is="token"), "the clipped ratio is the only weight, as in verl"),
        (said(bypass_mode=False, loss_type="reinforce"), f"'{SECTION}.loss_type' is ignored"),
        (
            said(bypass_mode=True, loss_type="reinforce") | {f"{ACTOR}.clip_ratio_high": 0.3},
            f"'{ACTOR}.clip_ratio_high' is ignored",
        ),
    ],
)
def test_correction_keys_without_effect_in_verl_are_ignored_with_a_notice(
    given: dict[str, object], notice: str
) -> None:
    (line,) = notices_of(**given)
    assert notice in line
    config_of(**given)


def test_older_names_are_refused_with_the_new_name() -> None:
    with pytest.raises(ConfigError, match=f"set {SECTION}.rollout_is to token or sequence"):
        config_of(**{"algorithm.rollout_is": True})
    with pytest.raises(ConfigError, match="did you mean 'token_k"):
        config_of(**said(rollout_rs="token_k4", rollout_rs_threshold=1))
