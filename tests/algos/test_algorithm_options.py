from __future__ import annotations

import pytest

from agentrl.algos.algorithm_options import estimator_options, policy_loss_options, preference_loss_options
from agentrl.algos.build import build_algorithm
from agentrl.config.actor import ActorConfig
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.errors import AgentRLError, ConfigError


def test_only_given_options_are_passed_on() -> None:
    assert estimator_options(AlgorithmConfig()) == {}
    assert policy_loss_options("vanilla", ActorConfig()) == {}
    given = AlgorithmConfig(name="gae", gamma=0.9, lam=0.95)
    assert estimator_options(given) == {"gamma": 0.9, "lam": 0.95}


def test_one_clip_value_applies_to_both_sides() -> None:
    actor = ActorConfig(clip_ratio=0.1, clip_ratio_high=0.3)
    assert policy_loss_options("vanilla", actor) == {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}


def test_further_options_go_by_their_own_names() -> None:
    assert policy_loss_options("clip_cov", ActorConfig(policy_loss={"clip_cov_ratio": 0.1})) == {"clip_cov_ratio": 0.1}
    actor = ActorConfig(policy_loss={"options": {"label_smoothing": 0.1}})
    assert preference_loss_options("dpo", actor) == {"label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("algorithm", "actor", "complaint"),
    [
        ({"gamma": 0.9}, {}, "'algorithm.gamma' has no effect: advantage estimator 'grpo' accepts norm_adv_by_std"),
        ({"name": "rloo", "norm_adv_by_std_in_grpo": False}, {}, "'algorithm.norm_adv_by_std_in_grpo' has no effect"),
        (
            {"adv_options": {"gama": 1}},
            {},
            "advantage estimator 'grpo' has no option 'gama'",
        ),
        (
            {"name": "gae", "adv_options": {"gamma": 1}},
            {},
            "write it as 'algorithm.gamma'",
        ),
        ({}, {"tau_pos": 1.0}, "'actor.tau_pos' has no effect: policy loss 'vanilla' accepts clip_ratio_low"),
        ({"name": "gpg"}, {"clip_ratio": 0.1}, "'actor.clip_ratio' has no effect: policy loss 'gpg' accepts"),
        ({}, {"policy_loss": {"loss_mode": "gsop"}}, "did you mean 'gspo'"),
        ({"adv_estimator": "rlo"}, {}, "did you mean 'rloo'"),
        (
            {"name": "ipo"},
            {"policy_loss": {"options": {"label_smoothing": 0.1}}},
            "'ipo' has no option",
        ),
    ],
)
def test_unsupported_options_are_refused_by_key(algorithm: dict, actor: dict, complaint: str) -> None:
    config = RunConfig.model_validate({"model": {"path": "unused"}, "algorithm": algorithm, "actor": actor})
    with pytest.raises(AgentRLError) as raised:
        build_algorithm(config)
    assert complaint in str(raised.value)
    if isinstance(raised.value, ConfigError):  # an UnknownNameError has no keys
        assert all(each.key and each.text.startswith(f"`{each.key}`") for each in raised.value.problems)


@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_can_be_built(name: str) -> None:
    built = build_algorithm(RunConfig.model_validate({"model": {"path": "unused"}, "algorithm": {"name": name}}))
    assert ("values" in built.needs) == (name == "gae")
    assert ("ref_logprobs" in built.needs) == (name in {"dpo", "ipo", "online_dpo"})


@pytest.mark.parametrize(
    ("algorithm", "actor", "complaint"),
    [
        ({"adv_estimator": "gea"}, {}, "'algorithm.adv_estimator': unknown advantage estimator 'gea': did you mean"),
        ({}, {"loss_mode": "gsop"}, "'actor.policy_loss.loss_mode': unknown policy loss 'gsop': did you mean 'gspo'"),
        ({"name": "pairwise"}, {"loss_mode": "dop"}, "'actor.policy_loss.loss_mode': unknown preference loss 'dop'"),
        ({}, {"loss_mode": "none.py:f"}, "'actor.policy_loss.loss_mode': there is no file '"),
        (
            {"name": "gigpo", "adv_options": {"step_advantage_weight": "much"}},
            {},
            "'algorithm.adv_options.step_advantage_weight': input should be a float, got 'much'",
        ),
        (
            {"name": "gae", "adv_options": {"whiten": 3}},
            {},
            "'algorithm.adv_options.whiten': input should be a bool, got 3",
        ),
        (
            {},
            {"loss_mode": "dro", "options": {"dro_beta": True}},
            "'actor.policy_loss.options.dro_beta': input should be a float, got True",
        ),
    ],
)
def test_mistakes_name_their_key(algorithm: dict[str, object], actor: dict[str, object], complaint: str) -> None:
    sections = {"algorithm": algorithm, "actor": {"policy_loss": actor}}
    with pytest.raises(AgentRLError) as error:
        build_algorithm(RunConfig.model_validate({"model": {"path": "m"}, **sections}))
    assert str(error.value).startswith(complaint)


def test_integer_option_is_accepted() -> None:
    actor = ActorConfig(policy_loss={"options": {"dro_beta": 1}})
    assert policy_loss_options("dro", actor) == {"dro_beta": 1}
