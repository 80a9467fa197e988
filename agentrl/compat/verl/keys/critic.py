"""verl's `critic.*`."""

from __future__ import annotations

from agentrl.compat.verl.keys.actor import read_shards
from agentrl.compat.verl.keys.data import expand_home
from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.names import aggregation_of, estimator_of
from agentrl.compat.verl.keys.optim import optim_rows
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of
from agentrl.errors import ConfigError, Kind

_NO_CRITIC = "{} needs no critic"
_AS_ACTOR = "default: the actor's value"
_BATCHES = "the critic uses the actor's micro-batches; their size does not change the results"
_SHARDS = "the actor's value is used, or only verl has the option"
_OFFLOAD = "offload to CPU memory; no effect on a CPU"
_AGGREGATION = "critic.loss_agg_mode"
_WARMUP = "trainer.critic_warmup"

CRITIC: tuple[Row, ...] = (
    Mapped(
        "critic.model.path",
        "critic.path",
        read=expand_home,
        note="default: the policy's weights with a value head; verl's default is another model",
    ),
    Mapped("critic.ppo_mini_batch_size", "critic.ppo_mini_batch_size", note=_AS_ACTOR),
    Mapped("critic.ppo_epochs", "critic.ppo_epochs", note=_AS_ACTOR),
    Mapped("critic.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu", note=_AS_ACTOR),
    Mapped("critic.grad_clip", "critic.grad_clip", 1.0),
    Mapped("critic.cliprange_value", "critic.cliprange_value", 0.5),
    Mapped(_AGGREGATION, _AGGREGATION, read=one_of(_AGGREGATION), note=_AS_ACTOR),
    *optim_rows("critic.optim", "critic.optim", "critic.grad_clip", 1e-5),
    *(
        Mapped(f"critic.{section}.{key}", f"critic.{key}", note=_OFFLOAD)
        for section in ("fsdp", "fsdp_config", "model.fsdp_config")
        for key in ("param_offload", "optimizer_offload")
    ),
    *(
        Mapped(f"critic.{section}.fsdp_size", "critic.fsdp_size", read=read_shards, note="-1: all processes")
        for section in ("fsdp", "fsdp_config", "model.fsdp_config")
    ),
    Mapped(
        _WARMUP,
        _WARMUP,
        0,
        lambda steps: max(0, int(str(steps)) - 1),
        "N becomes N - 1: verl skips the policy update in N - 1 steps",
    ),
    Fixed("critic.strategy", ("fsdp", "fsdp2", "megatron"), "remove it: the critic uses the actor's strategy"),
    Fixed("critic.loss_scale_factor", (None,), "seq-mean-token-sum-norm divides by data.max_response_length"),
    Fixed("critic.model.lora_rank", (None, 0), "remove it: all weights of the critic are trained"),
    Fixed("critic.model.override_config.*", (None,), "change config.json of the model"),
    Fixed("critic.model.external_lib", (None,), "import it in your reward or agent loop file"),
    Fixed("critic.model.hf_config_path", (None,), "put config.json next to the weights"),
    Mapped("critic.ulysses_sequence_parallel_size", "critic.ulysses_sequence_parallel_size", 1),
    Fixed("critic.load_weight", (True,), "remove it: weights are always loaded"),
    Hint("critic.enable", "a critic is used if the advantage estimator needs one"),
    Hint("critic.rollout_n", "use actor_rollout_ref.rollout.n"),
    Hint("critic.checkpoint.*", "a checkpoint always holds weights, optimizer state and data position"),
    Hint("critic.model.*", "the critic is loaded like the policy"),
    *(Hint(f"critic.{key}.*", _SHARDS) for key in ("fsdp", "fsdp_config", "engine")),
    *(Hint(f"critic.{key}", "the critic uses the actor's mini-batches") for key in ("shuffle", "data_loader_seed")),
    *(
        Hint(f"critic.{key}", _BATCHES)
        for key in (
            *("ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"),
            *("forward_micro_batch_size", "forward_micro_batch_size_per_gpu", "forward_max_token_len_per_gpu"),
            *("ppo_infer_micro_batch_size_per_gpu", "ppo_infer_max_token_len_per_gpu"),
        )
    ),
    *(Hint(f"critic.{key}", "an option that only verl has") for key in ("profiler.*", "nccl_timeout")),
)


def adjust_critic(draft: Draft) -> None:
    """Without a critic, drop critic keys. Otherwise aggregate the critic's loss like the actor's, as verl does."""
    if not uses_critic(draft):
        _leave_out(draft, _NO_CRITIC.format(f"algorithm.adv_estimator={estimator_of(draft)}"))
    elif _AGGREGATION not in draft.values and (aggregation := aggregation_of(draft)) != "token-mean":
        draft.values[_AGGREGATION] = aggregation


def uses_critic(draft: Draft) -> bool:
    """Whether the advantage estimator may need the values of a critic. Call `adjust_names` first."""
    estimator = estimator_of(draft)
    return estimator == "gae" or ":" in estimator


def _leave_out(draft: Draft, why: str) -> None:
    if draft.number(_WARMUP, 0):
        raise ConfigError.at(
            _WARMUP,
            Kind.NOT_SUPPORTED,
            f"`{_WARMUP}={draft.given[_WARMUP]}` is not supported: {why}, and the policy would not be updated "
            "in these steps; set it to 0",
        )
    given = [key for key in draft.given if key.startswith("critic.")]
    for reason, keys in list(draft.idle.items()):
        draft.idle[reason] = [key for key in keys if key not in given]
        if not draft.idle[reason]:
            del draft.idle[reason]
    for target in [key for key in draft.values if key.startswith("critic.")]:
        del draft.values[target]
    if given:
        draft.idle[why] = given
