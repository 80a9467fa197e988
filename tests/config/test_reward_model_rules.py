"""Reward-model options without effect are refused."""

from __future__ import annotations

import pytest

from agentrl.config.rules.combinations import idle_options
from agentrl.config.validate import validate_config
from agentrl.errors import ConfigError, Kind

MODEL = {"reward": "reward_model"}
RULE = {"reward": "exact_match", "weight": 0}
ONLINE = {"components": {"model": MODEL, "rule": RULE}, "reward_model": {"online": {"outcome": "rule"}}}


def check(**sections: object) -> None:
    validate_config({"model": {"path": "x"}, **sections})


def test_an_unused_reward_model_is_refused():
    config = validate_config({"model": {"path": "x"}, "reward": {"reward_model": {"path": "rm"}}})
    (problem,) = idle_options(config)
    assert (problem.key, problem.kind) == ("reward.reward_model.path", Kind.UNUSED)
    assert "without 'reward.name=reward_model' or a component" in problem.line()


def test_valid_settings_pass():
    check(reward={"name": "reward_model", "reward_model": {"path": "rm"}})
    check(reward=ONLINE)
    check(algorithm={"name": "reward_pairs", "pairing": "best_random"})
    check(algorithm={"name": "reward_steps", "reward_training": {"loss": "mse", "step": "good"}})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        (
            {"reward": {"name": "reward_model", "reward_model": {"online": {"outcome": "rule"}}}},
            r"needs exactly one component with reward: reward_model in 'reward\.components', not 0",
        ),
        (
            {"reward": ONLINE | {"reward_model": {"online": {"outcome": "rul"}}}},
            r"outcome': unknown component 'rul': did you mean 'rule'",
        ),
        (
            {"reward": ONLINE | {"reward_model": {"online": {"outcome": "model"}}}},
            r"outcome': unknown component 'model'",
        ),
        (
            {"reward": ONLINE | {"reward_model": {"activation": "none", "online": {"outcome": "rule"}}}},
            r"'reward\.reward_model\.activation=none' does not fit",
        ),
        (
            {"reward": ONLINE | {"components": {"model": MODEL | {"reward_kwargs": {"path": "x"}}, "rule": RULE}}},
            r"'reward\.components\.model\.reward_kwargs' has no effect with",
        ),
        (
            {"algorithm": {"reward_training": {"loss": "mse"}}},
            r"reward_training\.loss' has no effect without 'algorithm\.name=reward_outcomes' or",
        ),
        (
            {"algorithm": {"name": "reward_pairs", "reward_training": {"step": "x"}}},
            r"reward_training\.step' has no effect without 'algorithm\.name=reward_steps'",
        ),
        ({"algorithm": {"name": "reward_pairs"}, "model": {"path": "x", "lora_rank": 8}}, r"'model\.lora_rank'"),
        ({"algorithm": {"name": "reward_pairs"}, "actor": {"entropy_coeff": 0.1}}, r"'actor\.entropy_coeff'"),
        ({"algorithm": {"name": "reward_pairs"}, "actor": {"clip_ratio": 0.1}}, r"'actor\.clip_ratio'"),
        (
            {"algorithm": {"name": "reward_outcomes"}, "trainer": {"mode": "val_only"}},
            r"'trainer\.mode=val_only' needs a policy",
        ),
    ],
)
def test_invalid_settings_are_refused(sections, said):
    with pytest.raises(ConfigError, match=said):
        check(**sections)
