"""verl's `algorithm.rollout_correction.*`, including key names of older versions."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl.keys.draft import Draft
from agentrl.compat.verl.keys.names import OF_LOSSES
from agentrl.compat.verl.keys.rows import Fixed, Hint, Mapped, Row, truth

SECTION = "algorithm.rollout_correction"
_IS, _RS, _BYPASS, _LOSS = (f"{SECTION}.{key}" for key in ("rollout_is", "rollout_rs", "bypass_mode", "loss_type"))
_OF_IS = (f"{_IS}_threshold", f"{_IS}_batch_normalize")
_LOSS_MODE = "actor.policy_loss.loss_mode"
_CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
_OLD = f"set {_IS} to token or sequence, and {_IS}_threshold"


def _cap(value: object) -> Mapping[str, object]:
    """Read the cap of the importance weights; 0 or less means no importance weights."""
    cap = float(str(value))
    return {_IS: "token", f"{_IS}_threshold": cap} if cap > 0 else {}


CORRECTION: tuple[Row, ...] = (
    Fixed(SECTION, (None,), f"set keys in it, such as {_IS}"),
    Mapped(_BYPASS, _BYPASS, note="default: false with a correction or router_replay.mode=R2 (as in verl), else true"),
    *(Mapped(key, key) for key in (_IS, *_OF_IS, _RS, f"{_RS}_threshold", _LOSS)),
    Mapped(_CAP, (_IS, f"{_IS}_threshold"), read=_cap, note="truncated importance weights per token; -1: no weights"),
    Fixed("algorithm.rollout_is", (None, False), _OLD),
    *(
        Hint(f"algorithm.rollout_is_{key}", "no effect without rollout_is")
        for key in ("threshold", "threshold_lower", "level", "mode", "veto_threshold")
    ),
)


def adjust_correction(draft: Draft) -> None:
    """Apply verl's default of bypass_mode, and drop keys that verl does not read.

    The default is false if importance weights, rejections or R2 (`actor.routed_experts`) are configured.
    """
    values = draft.values
    values.setdefault(_LOSS_MODE, "vanilla")
    if values.get(_IS) or values.get(_RS) or values.get("actor.routed_experts"):
        values.setdefault(_BYPASS, False)
    if not values.get(_IS):
        draft.leave_out(_OF_IS, f"no effect without {_IS}, as in verl")
    if not values.get(_RS):
        draft.leave_out((f"{_RS}_threshold",), f"no effect without {_RS}, as in verl")
    if truth(values.get(_BYPASS, True)) is False:
        draft.leave_out((_LOSS,), f"no effect without {_BYPASS}=True, as in verl")
        return
    if draft.source_keys.get(_BYPASS) == _BYPASS and values.get(_LOSS_MODE) != "vanilla":
        draft.leave_out((_LOSS_MODE,), f"with {_BYPASS}=True, {_LOSS} selects the loss, as in verl")
        values[_LOSS_MODE] = "vanilla"
    if values.get(_LOSS, "ppo_clip") == "ppo_clip":
        why = f"with {_BYPASS}=True, the clipped ratio is the only weight, as in verl"
        draft.leave_out((_IS, *_OF_IS), why)
    else:
        draft.leave_out((*OF_LOSSES, _LOSS_MODE), f"with {_LOSS}=reinforce, no other loss is used, as in verl")
