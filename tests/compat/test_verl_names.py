"""verl's estimators, losses and rewards under agentrl's names: none is missing, and each reads the same options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verl_names_peer
from test_verl_keys import ACTOR, config_of, notices_of

from agentrl.algos.advantages.registry import ADVANTAGE_ESTIMATORS
from agentrl.algos.algorithm_options import estimator_options, policy_loss_options
from agentrl.algos.build import build_algorithm
from agentrl.algos.losses.registry import POLICY_LOSSES
from agentrl.algos.options import options_of
from agentrl.compat.verl.keys.names import READ_BY_ESTIMATOR, READ_BY_LOSS, read_estimator, read_loss
from agentrl.errors import ConfigError

ESTIMATORS = (
    *("gae", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "opo", "grpo_passk"),
    *("gpg", "rloo_vectorized", "grpo_vectorized", "gdpo"),
)
LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo")
NOT_HERE = {"optimal_token_baseline", "tir_optimal_token_baseline", "bypass_mode"}
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_is_ours_with_verls_defaults(name: str) -> None:
    config = config_of(**{"algorithm.adv_estimator": name})
    assert config.algorithm.estimator == read_estimator(name) == config.algorithm.name
    assert (config.loss_name, config.aggregation) == ("vanilla", "token-mean")
    build_algorithm(config)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_equals_verls_with_its_options(name: str) -> None:
    config = config_of(**{LOSS_MODE: name, f"{ACTOR}.clip_ratio_high": 0.3, f"{ACTOR}.policy_loss.dro_beta": 0.5})
    assert (config.loss_name, config.aggregation) == (read_loss(name), "token-mean")
    clips = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
    of_others = {
        "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
        "clip_cov": {**clips, "clip_cov_ratio": 0.0002, "clip_cov_lb": 1.0, "clip_cov_ub": 5.0},
        "kl_cov": {"kl_cov_ratio": 0.0002, "ppo_kl_coef": 0.1},
        "dro": {"dro_beta": 0.5},
        "gpg": {},
        **{key: {**clips, "clip_ratio_c": 3.0} for key in ("vanilla", "dppo_tv", "dppo_kl")},
    }
    assert policy_loss_options(config.loss_name, config.actor) == of_others.get(name, clips)


def test_options_of_verl_names_exist_here() -> None:
    """Otherwise a key would be passed to an algorithm that refuses it."""
    short = {"algorithm.norm_adv_by_std_in_grpo": "norm_adv_by_std"}
    for name, targets in READ_BY_ESTIMATOR.items():
        options = options_of(ADVANTAGE_ESTIMATORS.get(name))
        assert {short.get(target, target.rpartition(".")[2]) for target in targets} <= set(options)
    for name, targets in READ_BY_LOSS.items():
        options = options_of(POLICY_LOSSES.get(name))
        keys = {target.rpartition(".")[2] for target in targets} - {"clip_ratio"}
        assert ({"dro_beta"} if name == "dro" else keys) <= set(options)


@pytest.mark.parametrize(
    ("given", "name", "loss_mode", "estimator"),
    [
        ({LOSS_MODE: "gspo"}, "gspo", None, None),
        ({LOSS_MODE: "geo_mean"}, "gmpo", None, None),
        ({LOSS_MODE: "gspo", "algorithm.adv_estimator": "rloo"}, "rloo", "gspo", None),
        ({LOSS_MODE: "gpg", "algorithm.adv_estimator": "gpg"}, "gpg", None, None),
        ({"algorithm.adv_estimator": "gpg"}, "gpg", "vanilla", None),
        ({LOSS_MODE: "dppo_kl"}, "grpo", "dppo_kl", None),
        ({"algorithm.adv_estimator": "mine.py:raw"}, "grpo", None, "mine.py:raw"),
        ({LOSS_MODE: "mine.py:capped", "actor.policy_loss.options": {"cap": 3}}, "grpo", "mine.py:capped", None),
        ({"algorithm.name": "gigpo", "algorithm.gamma": 0.9}, "gigpo", None, "grpo"),  # NEEDED has grpo
    ],
)
def test_algorithm_name_selects_estimator_and_loss(
    given: dict[str, object], name: str, loss_mode: str | None, estimator: str | None
) -> None:
    config = config_of(**given)
    assert config.algorithm.name == name
    assert (config.actor.policy_loss.loss_mode, config.algorithm.adv_estimator) == (loss_mode, estimator)


def test_algorithm_name_selects_our_defaults() -> None:
    config = config_of(**{"algorithm.adv_estimator": None, "algorithm.name": "cispo"})
    assert policy_loss_options("cispo", config.actor) == {}
    assert config.aggregation == "token-mean"
    assert config_of(**{"algorithm.adv_estimator": None, "algorithm.name": "gspo"}).aggregation == "seq-mean-token-mean"


def test_discounts_reach_the_estimators_that_read_them() -> None:
    gae = {"algorithm.adv_estimator": "gae", "algorithm.gamma": 0.9, "algorithm.lam": 0.8}
    assert estimator_options(config_of(**gae).algorithm) == {"gamma": 0.9, "lam": 0.8}
    (told,) = notices_of(**gae | {"algorithm.adv_estimator": "reinforce_plus_plus"})
    assert told.startswith("'algorithm.lam' is ignored")


def test_bypass_mode_replaces_the_loss_as_in_verl() -> None:
    given = {"algorithm.rollout_correction.bypass_mode": True, LOSS_MODE: "gspo"}
    config = config_of(**given)
    assert (config.algorithm.name, config.loss_name, config.actor.clip_ratio_c) == ("grpo", "vanilla", 3.0)
    assert LOSS_MODE in notices_of(**given)[0]
    reinforced = config_of(**given | {"algorithm.rollout_correction.loss_type": "reinforce"})
    assert (reinforced.algorithm.name, reinforced.actor.clip_ratio_low) == ("grpo", None)
    build_algorithm(reinforced)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"use_kl_in_reward": True}, (True, "kl", "fixed", 0.001)),
        ({"use_kl_in_reward": True, "kl_penalty": "low_var_kl+", "kl_ctrl.kl_coef": 0.1}, (True, "low_var_kl+", 0.1)),
        ({"use_kl_in_reward": True, "kl_ctrl.type": "adaptive"}, (True, "kl", "adaptive")),
        ({"kl_penalty": "k3", "kl_ctrl.type": "adaptive"}, (False, "kl", "fixed")),  # verl ignores both
    ],
)
def test_kl_in_the_reward(given: dict[str, object], values: tuple[object, ...]) -> None:
    algorithm = config_of(**{f"algorithm.{key}": value for key, value in given.items()}).algorithm
    control = algorithm.kl_ctrl
    assert set(values) <= {algorithm.use_kl_in_reward, algorithm.kl_penalty, control.type, control.kl_coef}


@pytest.mark.parametrize(
    ("given", "target", "value"),
    [
        ({"metric": "reward"}, "metric", "score"),
        ({"metric": "seq_final_reward"}, "metric", "score"),
        ({"metric": "acc"}, "metric", "acc"),
        ({"max_num_gen_batches": -1}, "max_num_gen_batches", 0),
    ],
)
def test_verl_dynamic_sampling_keys_are_mapped(given: dict[str, object], target: str, value: object) -> None:
    section = {f"algorithm.filter_groups.{key}": each for key, each in ({"enable": True} | given).items()}
    assert getattr(config_of(**section).algorithm.filter_groups, target) == value


def test_the_critics_loss_is_summed_up_as_the_actors() -> None:
    given = {"algorithm.adv_estimator": "gae", f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"}
    assert config_of(**given).critic.loss_agg_mode == "seq-mean-token-sum"
    said = config_of(**given, **{"critic.loss_agg_mode": "token-mean"})
    assert said.critic.loss_agg_mode == "token-mean"


@pytest.mark.parametrize(
    ("given", "target", "value"),
    [
        ({"reward_model.reward_manager": "prime"}, "reward_manager.name", "prime"),
        ({"reward.reward_manager.name": "remote", "reward.num_workers": 3}, "num_workers", 3),
        ({"reward.reward_manager.name": "gdpo"}, "reward_manager.name", "naive"),
        ({"reward.reward_manager.name": "rate_limited"}, "max_concurrent", 1),
        ({"reward.reward_manager.name": "rate_limited", "reward.max_rpm": 60}, "max_rpm", 60),
        (
            {"reward.reward_manager.source": "importlib", "reward.reward_manager.module.path": "m.py"}
            | {"reward.reward_manager.name": "Mine"},
            "reward_manager.name",
            "Mine",
        ),
        (
            {"reward.reward_manager.name": "dapo", "reward.reward_kwargs.overlong_buffer_cfg.enable": True}
            | {"reward.reward_kwargs.overlong_buffer_cfg.len": 64, "reward.reward_kwargs.max_resp_len": 512},
            "overlong_buffer.len",
            64,
        ),
        # read by the dapo manager only
        ({"reward_model.overlong_buffer.enable": True}, "overlong_buffer.enable", False),
        ({"reward_model.sandbox_fusion.url": "http://h:1"}, "sandbox_fusion.url", "http://h:1"),
        # a configuration that verl saved has null under the unused names
        ({"sandbox_fusion.url": "http://h:1", "reward.sandbox_fusion.url": None}, "sandbox_fusion.url", "http://h:1"),
        ({"reward.timeout": 5}, "timeout_s", 5),
        ({"reward_model.enable": True, "reward_model.model.path": "m"}, "name", "reward_model"),
        ({"reward.reward_model.enable": True, "reward.reward_model.model_path": "m"}, "reward_model.path", "m"),
        ({"reward.reward_model.enable": False, "reward.reward_model.model_path": "m"}, "reward_model.path", None),
        # agentrl's own key
        ({"reward.name": "reward_model", "reward.reward_model.path": "m"}, "reward_model.path", "m"),
    ],
)
def test_verl_reward_keys_are_mapped(given: dict[str, object], target: str, value: object) -> None:
    found: object = config_of(**given).reward
    for name in target.split("."):
        found = getattr(found, name)
    assert found == value


def test_a_dataset_class_and_workers_are_passed_on() -> None:
    given = {
        "data.custom_cls.path": "~/d.py",
        "data.custom_cls.name": "Rows",
        "data.filter_overlong_prompts_workers": 4,
    }
    data = config_of(**given).data
    assert (data.custom_cls.name, data.filter_overlong_prompts_workers) == ("Rows", 4)
    assert str(data.custom_cls.path) == str(Path("~/d.py").expanduser())


def test_critic_warmup_without_critic_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.critic_warmup=5.* needs no critic"):
        config_of(**{"trainer.critic_warmup": 5})
    # in verl the first step trains both models
    assert config_of(**{"trainer.critic_warmup": 1}).trainer.critic_warmup == 0


@pytest.mark.slow
def test_the_names_are_all_that_verl_registers(run_peer: Callable[..., Any]) -> None:  # Any: the script's output
    estimators, losses = run_peer("verl", Path(verl_names_peer.__file__))
    assert set(estimators) - NOT_HERE == set(ESTIMATORS)
    assert set(losses) - NOT_HERE == set(LOSSES)
