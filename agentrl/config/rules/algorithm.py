"""Rules for options that have no effect with the chosen algorithm, or do not fit it."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.presets import PRESETS
from agentrl.config.rules.unused import every, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import Kind, Problem

LIVE = "live rollouts (`algorithm.name=grpo`)"

_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")
_OF_ESTIMATORS = (
    *("adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo", "adv_options"),
    *("gdpo_reward_keys", "gdpo_reward_weights", "use_kl_in_reward", "zero_variance_groups"),
)
_POLICY_GRADIENT = "a policy gradient (`algorithm.name=grpo`)"
_PREFERENCE = "a preference (`algorithm.name=pairwise`)"


def ignored_by_algorithm(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per option that the algorithm ignores."""
    algorithm, actor, family = config.algorithm, config.actor, config.algorithm.preset.family
    if not algorithm.live:
        yield from unused("rollout", config.rollout, ("temperature", "routed_experts"), LIVE)
        yield from unused("actor", actor, ("use_kl_loss",), LIVE)
        yield from unused("algorithm", algorithm, ("overlong_filter",), LIVE)
        yield from unused("algorithm.filter_groups", algorithm.filter_groups, ("enable",), LIVE)
    if family != "policy":
        yield from unused("algorithm", algorithm, _OF_ESTIMATORS, _POLICY_GRADIENT)
        yield from unused("actor", actor, _CLIPS, _POLICY_GRADIENT)
    if family in ("preference", "reward"):
        need = "a policy gradient or a likelihood (`algorithm.name=grpo`, `algorithm.name=rft`)"
        yield from unused("rollout.gateway", config.rollout.gateway, ("credit",), need)
    if family == "preference":
        yield from _ignored_by_preference(config)
    if family in ("imitation", "reward"):
        yield from unused("actor.policy_loss", actor.policy_loss, every(actor.policy_loss), _POLICY_GRADIENT)
    if family != "preference":
        options = ("beta", "length_normalized", *(() if algorithm.name == "reward_pairs" else ("pairing",)))
        yield from unused("algorithm", algorithm, options, _PREFERENCE)
    yield from _ignored_by_reward_training(config)
    if algorithm.name == "ranking":
        yield from unused("algorithm", algorithm, ("pairing",), "`algorithm.name=pairwise`: ranking uses all pairs")
    if algorithm.estimator != "threshold":
        yield from unused("algorithm", algorithm, ("rft_threshold",), "`algorithm.name=rft`")
    if not config.uses_reference:
        need = "a reference: `actor.use_kl_loss=true`, `algorithm.use_kl_in_reward=true` or `algorithm.name=dpo`"
        yield from unused("ref", config.ref, ("path", "sync_steps"), need)
    yield from _uncorrected(config)


def idle_in_algorithm(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per algorithm option without effect in training."""
    algorithm = config.algorithm
    if not algorithm.use_kl_in_reward:
        need = "`algorithm.use_kl_in_reward=true`"
        yield from unused("algorithm", algorithm, ("kl_penalty",), need)
        yield from unused("algorithm.kl_ctrl", algorithm.kl_ctrl, every(algorithm.kl_ctrl), need)
    elif algorithm.kl_ctrl.type == "fixed":
        need = "`algorithm.kl_ctrl.type=adaptive`"
        yield from unused("algorithm.kl_ctrl", algorithm.kl_ctrl, ("horizon", "target_kl"), need)
    if algorithm.use_kl_in_reward and algorithm.estimator == "gdpo":
        yield wrong(
            "algorithm.use_kl_in_reward",
            "has no effect: gdpo reads rewards by name; use `actor.use_kl_loss=true`",
            Kind.UNUSED,
        )
    if not algorithm.filter_groups.enable:
        need, options = "`algorithm.filter_groups.enable=true`", ("metric", "max_num_gen_batches")
        yield from unused("algorithm.filter_groups", algorithm.filter_groups, options, need)


def _ignored_by_preference(config: RunConfig) -> Iterator[Problem]:
    actor, name = config.actor, config.algorithm.name
    yield from unused(
        "actor", actor, ("loss_agg_mode",), f"{_POLICY_GRADIENT}: preference losses are averaged over groups"
    )
    if (config.loss_name == "ranking") != (name == "ranking"):
        line = f"`actor.policy_loss.loss_mode={config.loss_name}` has no effect with `algorithm.name={name}`"
        yield Problem(
            "actor.policy_loss.loss_mode",
            Kind.UNUSED,
            f"{line}: the loss `ranking` compares all rollouts of a group and works only with `algorithm.name=ranking`",
        )


def _ignored_by_reward_training(config: RunConfig) -> Iterator[Problem]:
    algorithm, where = config.algorithm, "algorithm.reward_training"
    only: dict[str, tuple[str, ...]] = {
        "reward_pairs": ("center_rewards_coefficient",),
        "reward_outcomes": ("outcome", "loss", "label_key"),
        "reward_steps": ("step", "loss", "labels_key"),
    }
    for option in every(algorithm.reward_training):
        names = [name for name, options in only.items() if option in options]
        if algorithm.name not in names:
            need = " or ".join(f"`algorithm.name={name}`" for name in names)
            yield from unused(where, algorithm.reward_training, (option,), need)
    if algorithm.preset.family == "reward":
        need = f"a trained policy: `algorithm.name={algorithm.name}` trains all weights of a reward model"
        yield from unused("model", config.model, ("lora_rank", "lora_adapter_path"), need)
        yield from unused("actor", config.actor, ("entropy_coeff", "loss_agg_mode"), need)
        if config.trainer.mode in ("val_only", "rollout_only"):
            yield wrong(
                "trainer.mode",
                f"needs a policy, but `algorithm.name={algorithm.name}` trains a reward model",
                Kind.CONFLICT,
                value=config.trainer.mode,
            )


def _uncorrected(config: RunConfig) -> Iterator[Problem]:
    where, correction = "algorithm.rollout_correction", config.algorithm.rollout_correction
    reinforces = correction.loss_type == "reinforce"
    if config.algorithm.preset.family != "policy":
        yield from unused(where, correction, every(correction), _POLICY_GRADIENT)
        yield from unused("actor", config.actor, ("routed_experts",), _POLICY_GRADIENT)
        return
    if correction.bypass_mode and not correction.corrects:
        need = f"old log-probabilities, for example `{where}.bypass_mode=false`"
        yield from unused("actor", config.actor, ("routed_experts",), need)
    if correction.rollout_is is None:
        weights = ("rollout_is_threshold", "rollout_is_batch_normalize")
        yield from unused(where, correction, weights, f"`{where}.rollout_is`")
    if correction.rollout_rs is None:
        yield from unused(where, correction, ("rollout_rs_threshold",), f"`{where}.rollout_rs`")
    elif correction.rollout_rs_threshold is None:
        yield wrong(
            f"{where}.rollout_rs", f"needs `{where}.rollout_rs_threshold`", Kind.MISSING, value=correction.rollout_rs
        )
    if not correction.bypass_mode:
        yield from unused(where, correction, ("loss_type",), f"`{where}.bypass_mode=true`")
    elif reinforces:
        settings, need = config.actor.policy_loss, f"`{where}.loss_type=ppo_clip`"
        yield from unused("actor", config.actor, _CLIPS, need)
        yield from unused("actor.policy_loss", settings, every(settings), need)
        if config.algorithm.preset.loss not in ("vanilla", "reinforce", "gpg"):
            yield wrong(
                "algorithm.name",
                f"selects a loss that has no effect without {need}",
                Kind.UNUSED,
                value=config.algorithm.name,
            )
    elif correction.rollout_is is not None and config.loss_name != "reinforce":
        # in bypass mode the ratio uses the engine's probabilities, so the ratio itself is the importance weight
        yield wrong(
            f"{where}.rollout_is",
            f"has no effect without `{where}.bypass_mode=false` or `{where}.loss_type=reinforce`",
            Kind.UNUSED,
        )


_WITHOUT_CRITIC = {preset.adv_estimator for preset in PRESETS.values()} - {"gae"}
"""Built-in estimators that need no critic. Your own estimators may use a critic."""


def idle_in_critic(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per critic option without effect in training."""
    if config.algorithm.estimator not in _WITHOUT_CRITIC:
        return
    need = "a critic (`algorithm.name=gae`)"
    yield from unused("critic", config.critic, every(config.critic), need)
    yield from unused("trainer", config.trainer, ("critic_warmup",), need)


def wrong_in_critic(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per invalid critic option."""
    mini_batch, trainer = config.critic.ppo_mini_batch_size, config.trainer
    if mini_batch and config.data.train_batch_size % mini_batch:
        yield wrong("critic.ppo_mini_batch_size", "must divide `data.train_batch_size`", value=mini_batch)
    if trainer.total_training_steps and trainer.critic_warmup >= trainer.total_training_steps:
        warmup = f"`trainer.critic_warmup={trainer.critic_warmup}`"
        yield Problem(
            "trainer.critic_warmup",
            Kind.WRONG_VALUE,
            f"{warmup}: the policy would never be trained; set it below `trainer.total_training_steps`",
        )


_FILTER = "`algorithm.filter_groups.enable=true`"
_SYNC = "`ref.sync_steps`"


def wrong_in_sampling(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per invalid use of dynamic sampling or reference sync."""
    if config.algorithm.filter_groups.enable:
        yield from _wrong_with_filter(config)
    if config.ref.sync_steps:
        yield from _wrong_with_sync(config)


def _wrong_with_filter(config: RunConfig) -> Iterator[Problem]:
    if config.trainer.mode in ("rollout_only", "train_only"):
        yield Problem(
            "algorithm.filter_groups.enable", Kind.UNUSED, f"{_FILTER} has no effect without `trainer.mode=train`"
        )
    if config.group_size < 2:
        yield Problem(
            "rollout.n",
            Kind.WRONG_VALUE,
            f"{_FILTER} would drop every group of one rollout: set `rollout.n` to 2 or more",
        )


def _wrong_with_sync(config: RunConfig) -> Iterator[Problem]:
    if config.model.lora_rank or config.model.lora_adapter_path:
        yield Problem(
            "ref.sync_steps",
            Kind.CONFLICT,
            f"{_SYNC} copies complete weights, but this run trains only a LoRA adapter: remove one of the two",
        )
    if config.ref.path and config.actor.freeze_modules:
        yield Problem(
            "ref.sync_steps",
            Kind.CONFLICT,
            f"{_SYNC} copies only trained weights; with `actor.freeze_modules` the other weights would"
            " still be those of `ref.path`: remove one of the three",
        )
