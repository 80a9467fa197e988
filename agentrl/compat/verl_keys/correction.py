"""verl's `algorithm.rollout_correction.*`, and the names that older versions had for parts of it."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.compat.verl_keys.draft import Draft
from agentrl.compat.verl_keys.rows import Fixed, Hint, Mapped, Row, truth

SECTION = "algorithm.rollout_correction"
_IS, _RS, _BYPASS, _LOSS = (f"{SECTION}.{key}" for key in ("rollout_is", "rollout_rs", "bypass_mode", "loss_type"))
_OF_IS = (f"{_IS}_threshold", f"{_IS}_batch_normalize")
_CLIPS = tuple(f"actor.clip_ratio{side}" for side in ("", "_low", "_high", "_c"))
_CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
_OLD = f"say {_IS}=token or sequence, with {_IS}_threshold"


def _cap(value: object) -> Mapping[str, object]:
    """A cap of 0 or below is none."""
    cap = float(str(value))
    return {_IS: "token", f"{_IS}_threshold": cap} if cap > 0 else {}


CORRECTION: tuple[Row, ...] = (
    Fixed(SECTION, (None,), f"say its keys, such as {_IS}"),
    Mapped(_BYPASS, _BYPASS, note="not said: false, as in verl, beside a correction, else true"),
    *(Mapped(key, key) for key in (_IS, *_OF_IS, _RS, f"{_RS}_threshold", _LOSS)),
    Mapped(_CAP, (_IS, f"{_IS}_threshold"), read=_cap, note="truncated weights of tokens; -1: none"),
    Fixed("algorithm.rollout_is", (None, False), _OLD),
    *(
        Hint(f"algorithm.rollout_is_{key}", "no effect without rollout_is")
        for key in ("threshold", "threshold_lower", "level", "mode", "veto_threshold")
    ),
)


def adjust_correction(draft: Draft) -> None:
    """verl's own default of bypass_mode holds where anything is corrected; what it would not read is left out."""
    values = draft.values
    if values.get(_IS) or values.get(_RS):
        values.setdefault(_BYPASS, False)
    if not values.get(_IS):
        _leave_out(draft, _OF_IS, f"no effect without {_IS}, as in verl")
    if not values.get(_RS):
        _leave_out(draft, (f"{_RS}_threshold",), f"no effect without {_RS}, as in verl")
    if truth(values.get(_BYPASS, True)) is False:
        _leave_out(draft, (_LOSS,), f"no effect without {_BYPASS}=True, as in verl")
    elif values.get(_LOSS, "ppo_clip") == "ppo_clip":
        why = f"with {_BYPASS}=True the clipped ratio is the only weight, as in verl"
        _leave_out(draft, (_IS, *_OF_IS), why)
    else:
        _leave_out(draft, _CLIPS, f"with {_LOSS}=reinforce nothing is clipped, as in verl")


def _leave_out(draft: Draft, targets: tuple[str, ...], why: str) -> None:
    for target in targets:
        dropped, said = draft.values.pop(target, None) is not None, draft.said_as.get(target, "")
        if dropped and said in draft.given and said not in draft.idle.setdefault(why, []):
            draft.idle[why].append(said)
