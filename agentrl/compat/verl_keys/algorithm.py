"""verl's `algorithm.*`, `critic.*`, and what it says of rewards."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl_keys.correction import CORRECTION
from agentrl.compat.verl_keys.data import expand_home
from agentrl.compat.verl_keys.rows import Fixed, Hint, Mapped, Row, one_of

_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss=True and actor_rollout_ref.actor.kl_loss_coef"
NO_KL_IN_REWARD = f"no effect without algorithm.use_kl_in_reward, in verl as here; for a KL term: {_KL_LOSS}"
_NO_CRITIC = "group-relative advantages need no critic"
_NO_REWARD_MODEL = "there is no reward model in this version; rewards are functions"
_NO_SANDBOX = "call the sandbox in your own reward function"
_MANAGER = (
    "naive and dapo (without its length penalty) score each rollout by compute_score, as here: write such a function"
)


def kl_coefficient(value: object) -> float | None:
    """The number that `algorithm.kl_penalty` is; None where it is a name."""
    try:
        return float(str(value))
    except ValueError:
        return None


def _kl_penalty(value: object) -> Mapping[str, object]:
    """A number is the coefficient of a KL loss; a name is the estimator of a KL that is not taken from the reward."""
    coefficient = kl_coefficient(value)
    return {} if coefficient is None else {"actor.use_kl_loss": coefficient > 0, "actor.kl_loss_coef": coefficient}


ALGORITHM: tuple[Row, ...] = (
    Mapped("algorithm.adv_estimator", "algorithm.adv_estimator", "gae", one_of("algorithm.adv_estimator")),
    Mapped("algorithm.norm_adv_by_std_in_grpo", "algorithm.norm_adv_by_std_in_grpo", True),
    Mapped("algorithm.group_size", "rollout.n", note="short name"),
    Mapped(
        "algorithm.kl_penalty",
        ("actor.use_kl_loss", "actor.kl_loss_coef"),
        read=_kl_penalty,
        note="a number: KL loss with that coefficient, 0 for none; a name has no effect without use_kl_in_reward",
    ),
    Fixed("algorithm.use_kl_in_reward", (False,), f"KL in the reward is not in this version: use {_KL_LOSS}"),
    Hint("algorithm.kl_ctrl.*", NO_KL_IN_REWARD),
    *(Hint(f"algorithm.{key}", "group-relative advantages do not use it") for key in ("gamma", "lam")),
    Fixed("algorithm.filter_groups.enable", (None, False), "leave it out: groups of equal rewards have advantage 0"),
    Hint("algorithm.filter_groups.*", "no effect without filter_groups.enable"),
    *CORRECTION,
    Fixed("algorithm.use_pf_ppo", (False,), "leave it out: not in this version"),
    Hint("algorithm.pf_ppo.*", "no effect without use_pf_ppo"),
    Hint("critic.*", _NO_CRITIC),
    Fixed("distillation.enabled", (None, False), "leave it out: not in this version"),
    Hint("distillation.*", "no effect without distillation.enabled"),
)


def _reward_function(prefix: str) -> tuple[Row, ...]:
    return (
        Mapped(f"{prefix}.path", "reward.custom_reward_function.path", read=expand_home),
        Mapped(f"{prefix}.name", "reward.custom_reward_function.name", "compute_score"),
        Mapped(f"{prefix}.reward_kwargs", "reward.custom_reward_function.reward_kwargs"),
    )


REWARD: tuple[Row, ...] = (
    *_reward_function("custom_reward_function"),
    *_reward_function("reward.custom_reward_function"),
    Fixed("reward_model.reward_manager", (None, "naive", "dapo"), _MANAGER),
    *(
        row
        for section in ("reward_manager", "reward.reward_manager")
        for row in (
            Fixed(f"{section}.name", (None, "naive", "dapo"), _MANAGER),
            Fixed(f"{section}.source", (None, "register"), _MANAGER),
            Fixed(f"{section}.module.path", (None,), _MANAGER),
            Hint(f"{section}.module.name", "no effect without module.path"),
        )
    ),
    *(
        Fixed(f"{key}.enable", (None, False), "put the penalty into your reward function")
        for key in (
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
            "reward.reward_kwargs.overlong_buffer_cfg",
        )
    ),
    *(
        Hint(f"{key}.*", "no effect without its enable")
        for key in (
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
            "reward.reward_kwargs.overlong_buffer_cfg",
        )
    ),
    *(
        Hint(f"{key}.reward_kwargs.max_resp_len", "no effect without overlong_buffer_cfg.enable")
        for key in ("reward_model", "reward")
    ),
    *(
        Fixed(key, (None, False), "rewards are functions in this version: custom_reward_function.path")
        for key in ("reward_model.enable", "reward.reward_model.enable")
    ),
    Fixed("reward_model.reward_loop_source", (None, "register"), "use custom_reward_function.path"),
    *(
        Fixed(f"reward_model.{key}", (None,), "use custom_reward_function.path")
        for key in ("reward_loop_module_path", "reward_loop_class_name")
    ),
    *(
        Fixed(f"{key}.url", (None,), _NO_SANDBOX)
        for key in ("sandbox_fusion", "reward_model.sandbox_fusion", "reward.sandbox_fusion")
    ),
    *(
        Hint(f"{key}.*", "no effect without its url")
        for key in ("sandbox_fusion", "reward_model.sandbox_fusion", "reward.sandbox_fusion")
    ),
    *(
        Hint(key, "every reward runs off the event loop, with a deadline: reward.timeout_s")
        for key in (
            "reward.num_workers",
            "reward_model.num_workers",
            "reward_model.launch_reward_fn_async",
            "reward_model.use_reward_loop",
        )
    ),
    *(
        Hint(key, _NO_REWARD_MODEL)
        for key in (
            "reward.reward_model.*",
            "reward_model.model.*",
            "reward_model.rollout.*",
            "reward_model.enable_resource_pool",
            "reward_model.n_gpus_per_node",
            "reward_model.nnodes",
            "reward_model.strategy",
            "reward_model.micro_batch_size",
            "reward_model.micro_batch_size_per_gpu",
            "reward_model.max_length",
            "reward_model.use_dynamic_bsz",
            "reward_model.forward_max_token_len_per_gpu",
            "reward_model.ulysses_sequence_parallel_size",
            "reward_model.nccl_timeout",
            "reward_model.load_weight",
            "reward_model.profiler.*",
            "reward_model.megatron.*",
        )
    ),
)
