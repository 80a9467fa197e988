"""Which rollouts and tokens of a step were trained on, and with which estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.estimators import Floats
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.reading.table import Integers, Step, Truths

SEGMENTS, TRAJECTORIES = "trajectories.segments", "trajectories"

_ESTIMATORS = {
    **dict.fromkeys(("gspo", "cispo", "gmpo", "sapo", "clip_cov", "kl_cov", "dppo", "reinforce"), "grpo"),
    **dict.fromkeys(("pairwise", "online_dpo", "dpo", "ipo"), "best_worst"),
    "ranking": "scores",
    "rft": "threshold",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}
"""Algorithm -> name of its estimator, if the names differ."""

OF_PREFERENCES = ("best_worst", "scores")
"""Estimators that compare whole rollouts; weights of trajectories have no effect on these estimators."""
_NOT_CHOSEN = (*OF_PREFERENCES, "threshold")
"""Estimators of algorithms that ignore `algorithm.adv_estimator`."""


@dataclass(frozen=True)
class Credited:
    """Which tokens were trained on.

    Attributes:
        valid: [rows], whether a rollout is valid for training.
        has: [trajectories], whether a trajectory was trained on.
        lengths: [trajectories], number of tokens.
        mask: [all tokens], true for trained tokens of trajectories that were trained on.
        mask_of_has: [tokens of trajectories that were trained on], true for trained tokens.
    """

    valid: Truths
    has: Truths
    lengths: Integers
    mask: Truths
    mask_of_has: Truths


def credited(step: Step, known: RunInfo, split: str) -> Credited:
    """Compute which tokens of a step were trained on. In validation and in replays, no token was trained on."""
    trained = _trained_tokens(step)
    ends = step.items[f"{SEGMENTS}.token_ids"].ends[step.items[SEGMENTS].ends]
    counts = np.concatenate([[0], np.cumsum(trained)])
    num_trained = counts[ends[1:]] - counts[ends[:-1]]
    valid = _valid_rows(step, num_trained)
    trains = split == "train" and not known.replayed_from and not _cannot_be_credited(known)
    has = (num_trained > 0) & valid[step.items[TRAJECTORIES].row] & trains
    of_token = np.repeat(has, np.diff(ends))
    return Credited(valid, has, np.diff(ends), trained & of_token, trained[of_token])


def _cannot_be_credited(known: RunInfo) -> bool:
    """Whether the advantages need log-probabilities or values that the run, in mode rollout_only, does not compute."""
    needs = estimator_name(known) == "gae" or known.get("algorithm.use_kl_in_reward")
    return known.mode == "rollout_only" and bool(needs)


def _trained_tokens(step: Step) -> Truths:
    """[all tokens], true for trained tokens. A trajectory's first token has no logits and is never trained."""
    ids = step.items[f"{SEGMENTS}.token_ids"]
    authors = np.array(step[f"{SEGMENTS}.author"], object)
    trained: Truths = np.isin(authors, ("model", "demonstration"))[ids.owner]
    firsts = ids.ends[step.items[SEGMENTS].ends[:-1]]
    trained[firsts[firsts < len(trained)]] = False
    weighted: Truths = trained & (_weights_of_tokens(step) != 0.0)
    return weighted


def _weights_of_tokens(step: Step) -> Floats:
    """[all tokens], the weight of each token's trajectory; 1 in older schemas."""
    lengths = np.diff(step.items[f"{SEGMENTS}.token_ids"].ends[step.items[SEGMENTS].ends])
    return np.repeat(weights(step), lengths)


def weights(step: Step) -> Floats:
    """[trajectories], the factor of each trajectory's advantages; 1 in older schemas."""
    path = f"{TRAJECTORIES}.weight"
    if path not in step.arrays:
        return np.ones(len(step.items[TRAJECTORIES]))
    return np.asarray(step[path], np.float64)


def _valid_rows(step: Step, num_trained: Integers) -> Truths:
    """Rollouts without an infrastructure failure or an error, and with at least one trained token."""
    stops = np.array([stop != "error" for stop in step["stop"]], np.bool_)
    ends = np.concatenate([[0], np.cumsum(num_trained)])
    rows = step.items[TRAJECTORIES].ends
    valid: Truths = stops & (ends[rows[1:]] > ends[rows[:-1]]) & ~step["infra_failed"].astype(np.bool_)
    return valid


def estimator_name(known: RunInfo) -> str:
    """Name of the configured estimator."""
    name, chosen = str(known.get("algorithm.name")), known.get("algorithm.adv_estimator")
    own = _ESTIMATORS.get(name, name)
    return own if own in _NOT_CHOSEN or not chosen else _ESTIMATORS.get(str(chosen), str(chosen))


def saved_scores(step: Step, name: str) -> Floats | None:
    """[tokens of trajectories that were trained on], saved column `name`; None unless it has one number per token."""
    items = step.items.get(f"{TRAJECTORIES}.{name}")
    own = step.items[f"{TRAJECTORIES}.advantages"]
    fits = items is not None and len(items) and bool((items.lengths == own.lengths).all())
    return np.asarray(step[items.path], np.float64) if fits and items is not None else None


def sampled_tokens(step: Step) -> Truths:
    """[all tokens], whether the model sampled the token."""
    authors = np.array([author == "model" for author in step[f"{SEGMENTS}.author"]], np.bool_)
    sampled: Truths = authors[step.items[f"{SEGMENTS}.token_ids"].owner]
    return sampled


_SCORES = ("old_logprobs", "ref_logprobs", "values")


def check_scores(check: Checker, known: RunInfo, split: str) -> None:
    """Check each column of `_SCORES`: null if not computed, else one finite value per token, 0 for untrained tokens."""
    step = check.step
    if "trajectories.values" not in step.items:
        check.ledger.skip("scores", "files of schema 2 have none", len(step))
        return
    found = credited(step, known, split)
    for name in _SCORES:
        path = f"{TRAJECTORIES}.{name}"
        is_scored = _is_scored(known, name)
        if is_scored is None:  # custom estimator: all or no trajectories must have the score
            is_scored = bool((~step.items[path].null).any())
        if not check.require_lengths("scores", path, np.where(found.has & is_scored, found.lengths, -1)).all():
            continue
        if is_scored:
            values, top = step[path], np.inf if name == "values" else 1e-6
            good = np.isfinite(values) & np.where(found.mask_of_has, values <= top, values == 0.0)
            check.require("scores", path, good, "finite for trained tokens, 0 for others")
    _check_coefficient(check, known, found.has)


def _is_scored(known: RunInfo, name: str) -> bool | None:
    """Whether training computed the column `name` of `_SCORES`; None if unknown."""
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


def _check_coefficient(check: Checker, known: RunInfo, has: Truths) -> None:
    """Check the KL coefficient: 0 without KL in the reward, else as configured; if adaptive, equal within a step."""
    path = f"{TRAJECTORIES}.kl_coef"
    saved = check.step[path]
    if known.config is None:
        check.ledger.skip("scores", f"KL in the reward: {NO_CONFIG}", len(saved))
        return
    coefficient = 0.0
    if known.get("algorithm.use_kl_in_reward") and known.mode != "rollout_only":
        follows = known.get("algorithm.kl_ctrl.type") == "adaptive" and has.any()
        coefficient = float(saved[has][0]) if follows else known.number("algorithm.kl_ctrl.kl_coef") or 0.0
    expected = np.where(has, coefficient, 0.0)
    check.require("scores", path, (saved == expected) & np.isfinite(saved) & (saved >= 0), expected)
