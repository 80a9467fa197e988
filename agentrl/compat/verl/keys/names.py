"""Conversion of verl's estimator and loss names to `algorithm.name`, which selects estimator and loss."""

from __future__ import annotations

from agentrl.compat.verl.keys.draft import Draft
from agentrl.config.presets import PRESETS
from agentrl.errors import ConfigError, suggestion

_NAME, _ESTIMATOR = "algorithm.name", "algorithm.adv_estimator"
_LOSS, _AGGREGATION = "actor.policy_loss.loss_mode", "actor.loss_agg_mode"
_NORM, _GAMMA, _LAM = "algorithm.norm_adv_by_std_in_grpo", "algorithm.gamma", "algorithm.lam"
_GDPO = ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights")
_SIDES = ("actor.clip_ratio", "actor.clip_ratio_low", "actor.clip_ratio_high")
_DUAL = "actor.clip_ratio_c"
_SETTINGS = "actor.policy_loss"

READ_BY_ESTIMATOR: dict[str, tuple[str, ...]] = {
    "gae": (_GAMMA, _LAM),
    "grpo": (_NORM,),
    "grpo_passk": (_NORM,),
    "reinforce_plus_plus": (_GAMMA,),
    "gdpo": _GDPO,
    **dict.fromkeys(("reinforce_plus_plus_baseline", "remax", "rloo", "opo", "gpg"), ()),
}
"""verl's estimator -> agentrl keys of the options that the estimator reads in verl 0.9.1."""

READ_BY_LOSS: dict[str, tuple[str, ...]] = {
    "vanilla": (*_SIDES, _DUAL),
    "dppo_tv": (*_SIDES, _DUAL),
    "dppo_kl": (*_SIDES, _DUAL),
    "gspo": _SIDES,
    "cispo": _SIDES,
    "gmpo": _SIDES,
    "sapo": ("actor.tau_pos", "actor.tau_neg"),
    "clip_cov": (*_SIDES, *(f"{_SETTINGS}.clip_cov_{key}" for key in ("ratio", "lb", "ub"))),
    "kl_cov": (f"{_SETTINGS}.kl_cov_ratio", f"{_SETTINGS}.ppo_kl_coef"),
    "dro": (f"{_SETTINGS}.options",),
    "gpg": (),
}
"""verl's loss -> agentrl keys of the options that the loss reads in verl 0.9.1."""
OF_LOSSES = tuple(dict.fromkeys(target for targets in READ_BY_LOSS.values() for target in targets))
"""All loss options in `READ_BY_LOSS`."""

_ALIASES = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
_LOSS_ALIASES = {"geo_mean": "gmpo"}
_OF_ESTIMATORS = (_GAMMA, _LAM, _NORM, *_GDPO)


def read_estimator(value: object) -> str:
    """Read the name of an estimator of verl or agentrl, or `file.py:function`.

    Raises:
        ConfigError: the name is unknown.
    """
    ours = {preset.adv_estimator for preset in PRESETS.values() if preset.family == "policy"}
    return _known(value, ours, _ALIASES)


def read_loss(value: object) -> str:
    """Read the name of a policy loss of verl or agentrl, or `file.py:function`.

    Raises:
        ConfigError: the name is unknown.
    """
    ours = {preset.loss for preset in PRESETS.values() if preset.family == "policy"}
    return _known(value, ours | READ_BY_LOSS.keys(), _LOSS_ALIASES)


def _known(value: object, names: set[str], aliases: dict[str, str]) -> str:
    name = aliases.get(str(value), str(value))
    if name not in names and ":" not in name:
        raise ConfigError.keyless(f"'{value}' is not supported: {suggestion(name, names | aliases.keys())}")
    return name


def adjust_names(draft: Draft) -> None:
    """Convert verl's estimator and loss to `algorithm.name`, and drop options that verl would not read.

    If the user gives `algorithm.name`, agentrl's defaults for the algorithm apply, not verl's.
    """
    if _NAME in draft.given:
        for target in (_ESTIMATOR, _LOSS, _AGGREGATION, *OF_LOSSES):
            if draft.source_keys.get(target) not in draft.given:
                draft.values.pop(target, None)
        return
    _leave_out_unread(draft)
    _name(draft)


def estimator_of(draft: Draft) -> str:
    """Return the advantage estimator, or "" if `algorithm.name` is unknown. Call `adjust_names` first."""
    name = str(draft.values.get(_NAME, "grpo"))
    return str(draft.values.get(_ESTIMATOR) or (PRESETS[name].adv_estimator if name in PRESETS else ""))


def aggregation_of(draft: Draft) -> object:
    """Return the actor's loss aggregation, or None if `algorithm.name` is unknown. Call `adjust_names` first."""
    name = str(draft.values.get(_NAME, "grpo"))
    return draft.values.get(_AGGREGATION) or (PRESETS[name].aggregation if name in PRESETS else None)


def _leave_out_unread(draft: Draft) -> None:
    values = draft.values
    estimator, loss = str(values[_ESTIMATOR]), values.get(_LOSS)
    read = READ_BY_ESTIMATOR.get(estimator, _OF_ESTIMATORS)
    unread = [target for target in _OF_ESTIMATORS if target not in read]
    draft.leave_out(unread, f"{_ESTIMATOR}={estimator} does not read it, as in verl")
    if loss is not None:  # drop only options given by verl's keys: unused options of agentrl's keys are reported later
        read = READ_BY_LOSS.get(str(loss), OF_LOSSES)
        from_verl = {
            target for target in OF_LOSSES if draft.source_keys.get(target, "").startswith("actor_rollout_ref.")
        }
        unread = [target for target in OF_LOSSES if target in from_verl and target not in read]
        draft.leave_out(unread, f"policy_loss.loss_mode={loss} does not read it, as in verl")


def _name(draft: Draft) -> None:
    """Set `algorithm.name` to the preset with this estimator and loss.

    If there is no such preset, use the preset with the estimator's name. If there is none either, use grpo.
    Drop the values of estimator, loss and aggregation that the chosen preset already has.
    """
    values = draft.values
    estimator, loss = str(values[_ESTIMATOR]), values.get(_LOSS)
    policies = {name: preset for name, preset in PRESETS.items() if preset.family == "policy"}
    both = [name for name, each in policies.items() if (each.adv_estimator, each.loss) == (estimator, loss)]
    name = both[0] if both else estimator if estimator in policies else "grpo"
    values[_NAME], draft.source_keys[_NAME] = name, _ESTIMATOR
    if policies[name].adv_estimator == estimator:
        values.pop(_ESTIMATOR)
    if policies[name].loss == loss:
        values.pop(_LOSS)
    if policies[name].aggregation == values.get(_AGGREGATION):
        values.pop(_AGGREGATION)
