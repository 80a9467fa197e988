"""verl's `algorithm.*`, except off-policy correction."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl.keys.correction import CORRECTION
from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.names import read_estimator
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, one_of, truth
from agentrl.errors import ConfigError, Kind

_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss=True and actor_rollout_ref.actor.kl_loss_coef"
_NO_KL_IN_REWARD = f"no effect without algorithm.use_kl_in_reward, as in verl; for a KL term set {_KL_LOSS}"
_KL_PENALTY, _KL_CTRL = "algorithm.kl_penalty", "algorithm.kl_ctrl"
_FILTER = "algorithm.filter_groups"
_SCORES = {"reward": "score", "seq_reward": "score", "seq_final_reward": "score"}

_read_kl = one_of(_KL_PENALTY)


def _kl_penalty(value: object) -> Mapping[str, object]:
    """Read kl_penalty: a number is the coefficient of a KL loss; a name is the estimator of the KL in the reward."""
    try:
        coefficient = float(str(value))
    except ValueError:
        return {_KL_PENALTY: _read_kl(value)}
    return {"actor.use_kl_loss": coefficient > 0, "actor.kl_loss_coef": coefficient}


ALGORITHM: tuple[Row, ...] = (
    Mapped(
        "algorithm.adv_estimator",
        "algorithm.adv_estimator",
        "gae",
        read_estimator,
        "estimator and loss_mode become algorithm.name if a preset has both; gae uses a critic; "
        "file.py:function is your own estimator",
    ),
    Mapped(
        "algorithm.gamma",
        "algorithm.gamma",
        note="gamma and lam are dropped if verl's estimator does not read them",
    ),
    Mapped("algorithm.lam", "algorithm.lam"),
    Mapped("algorithm.norm_adv_by_std_in_grpo", "algorithm.norm_adv_by_std_in_grpo", True),
    Mapped("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_keys"),
    Mapped("algorithm.gdpo_reward_weights", "algorithm.gdpo_reward_weights"),
    Mapped("algorithm.group_size", "rollout.n", note="short name"),
    Mapped("algorithm.use_kl_in_reward", "algorithm.use_kl_in_reward", False),
    Mapped(
        _KL_PENALTY,
        ("actor.use_kl_loss", "actor.kl_loss_coef", _KL_PENALTY),
        read=_kl_penalty,
        note="a name: the KL estimator in the reward; a number: the coefficient of a KL loss, 0 for none",
    ),
    *(Mapped(f"{_KL_CTRL}.{key}", f"{_KL_CTRL}.{key}") for key in ("type", "kl_coef", "horizon", "target_kl")),
    Mapped(f"{_FILTER}.enable", f"{_FILTER}.enable"),
    Mapped(
        f"{_FILTER}.metric",
        f"{_FILTER}.metric",
        read=lambda metric: _SCORES.get(str(metric), str(metric)),
        note="reward, seq_reward and seq_final_reward become score, the result of a reward function; "
        "acc needs a reward that returns an entry acc",
    ),
    Mapped(
        f"{_FILTER}.max_num_gen_batches",
        f"{_FILTER}.max_num_gen_batches",
        read=lambda value: max(0, int(str(value))),
        note="in batches of data.train_batch_size; 0 or less: no limit",
    ),
    Hint(f"{_FILTER}.max_inflight_gen_batches", "tasks are drawn one by one when rollouts end"),
    *CORRECTION,
    Fixed("algorithm.use_pf_ppo", (False,), "remove it"),
    Hint("algorithm.pf_ppo.*", "no effect without use_pf_ppo"),
    Fixed("distillation.enabled", (None, False), "remove it"),
    Hint("distillation.*", "no effect without distillation.enabled"),
)


def adjust_algorithm(draft: Draft) -> None:
    """Drop keys that verl does not read because `use_kl_in_reward` or `filter_groups.enable` is not true."""
    values = draft.values
    if truth(values.get("algorithm.use_kl_in_reward")) is not True:
        targets = [key for key in values if key == _KL_PENALTY or key.startswith(f"{_KL_CTRL}.")]
        draft.leave_out(targets, _NO_KL_IN_REWARD)
    if truth(values.get(f"{_FILTER}.enable")) is not True:
        targets = [key for key in values if key.startswith(f"{_FILTER}.")]
        draft.leave_out(targets, f"no effect without {_FILTER}.enable")
        _refuse_larger_batches(draft)


def _refuse_larger_batches(draft: Draft) -> None:
    """Refuse a `gen_batch_size` that differs from the batch size.

    Called only without dynamic sampling. With dynamic sampling, `gen_batch_size` is ignored.
    """
    size = draft.given.get("data.gen_batch_size")
    if size is not None and str(size) != str(draft.values.get("data.train_batch_size")):
        raise ConfigError.at(
            "data.gen_batch_size",
            Kind.NOT_SUPPORTED,
            f"`data.gen_batch_size={size}` is not supported: use only data.train_batch_size, or {_FILTER}.enable=True",
        )
