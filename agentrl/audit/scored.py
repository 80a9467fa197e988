"""What samples were scored with for training: log-probabilities, values, the coefficient of a KL in the reward."""

from __future__ import annotations

import numpy as np

from agentrl.audit.checker import Checker
from agentrl.audit.credited import TRAJECTORIES, credited, estimator_name
from agentrl.audit.known import NO_CONFIG, Known
from agentrl.audit.table import Truths

_SCORES = ("old_logprobs", "ref_logprobs", "values")


def check_scores(check: Checker, known: Known, split: str) -> None:
    """None where nothing was scored; else one a token, finite, and 0 off the trained ones."""
    step = check.step
    if "trajectories.values" not in step.items:
        check.ledger.skip("scores", "files of schema 2 keep none", len(step))
        return
    found = credited(step, known, split)
    for name in _SCORES:
        path = f"{TRAJECTORIES}.{name}"
        wanted = _is_scored(known, name)
        if wanted is None:  # an estimator of the user's own, of which all trajectories are, or none
            wanted = bool((~step.items[path].null).any())
        if not check.hold_lengths("scores", path, np.where(found.has & wanted, found.lengths, -1)).all():
            continue
        if wanted:
            values, top = step[path], np.inf if name == "values" else 1e-6
            good = np.isfinite(values) & np.where(found.mask_of_has, values <= top, values == 0.0)
            check.hold("scores", path, good, "a finite number where a token is trained, 0 elsewhere")
    _check_coefficient(check, known, found.has)


def _is_scored(known: Known, name: str) -> bool | None:
    """Whether training asked for it; None where that is not known."""
    if known.config is None:
        return None
    if known.mode == "rollout_only":
        return False
    correction = known.get("algorithm.rollout_correction") or {}
    if name == "old_logprobs":
        corrects = correction.get("rollout_is") or correction.get("rollout_rs")
        return bool(corrects) or correction.get("bypass_mode") is False
    if name == "ref_logprobs":
        loss = known.get("actor.policy_loss.loss_mode") or known.get("algorithm.name")
        own = loss in ("dpo", "ipo", "online_dpo")
        return bool(own or known.get("actor.use_kl_loss") or known.get("algorithm.use_kl_in_reward"))
    estimator = estimator_name(known)
    return None if ":" in estimator else estimator == "gae"


def _check_coefficient(check: Checker, known: Known, has: Truths) -> None:
    """0 where no KL was taken from the reward; else what was configured, or one that all of the step share."""
    path = f"{TRAJECTORIES}.kl_coef"
    kept = check.step[path]
    if known.config is None:
        check.ledger.skip("scores", f"the KL in the reward: {NO_CONFIG}", len(kept))
        return
    coefficient = 0.0
    if known.get("algorithm.use_kl_in_reward") and known.mode != "rollout_only":
        follows = known.get("algorithm.kl_ctrl.type") == "adaptive" and has.any()
        coefficient = float(kept[has][0]) if follows else known.number("algorithm.kl_ctrl.kl_coef") or 0.0
    expected = np.where(has, coefficient, 0.0)
    check.hold("scores", path, (kept == expected) & np.isfinite(kept) & (kept >= 0), expected)
