"""Which rollouts and tokens of a step were trained, and by which estimator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.audit.estimators import Floats
from agentrl.audit.known import Known
from agentrl.audit.table import Integers, Step, Truths

SEGMENTS, TRAJECTORIES = "trajectories.segments", "trajectories"

_ESTIMATORS = {
    **dict.fromkeys(("gspo", "cispo", "gmpo", "sapo", "clip_cov", "kl_cov", "dppo", "reinforce"), "grpo"),
    **dict.fromkeys(("pairwise", "online_dpo", "dpo", "ipo"), "best_worst"),
    "ranking": "scores",
    "rft": "threshold",
    "grpo_vectorized": "grpo",
    "rloo_vectorized": "rloo",
}
"""What an algorithm estimates by, where that is not called like itself."""

_NOT_CHOSEN = ("best_worst", "scores", "threshold")
"""Estimators that algorithm.adv_estimator does not change."""


@dataclass(frozen=True)
class Credited:
    """Which tokens were trained.

    Attributes:
        valid: [rows], whether a rollout took part.
        has: [trajectories], whether it was trained on.
        lengths: [trajectories] tokens.
        mask: [tokens], those that are trained of trajectories that were trained on.
        mask_of_has: [tokens of trajectories that were trained on], likewise.
    """

    valid: Truths
    has: Truths
    lengths: Integers
    mask: Truths
    mask_of_has: Truths


def credited(step: Step, known: Known, split: str) -> Credited:
    """Of a step that was trained on, or not: a replay credits nothing."""
    trained = _trained_tokens(step)
    ends = step.items[f"{SEGMENTS}.token_ids"].ends[step.items[SEGMENTS].ends]
    counts = np.concatenate([[0], np.cumsum(trained)])
    num_trained = counts[ends[1:]] - counts[ends[:-1]]
    valid = _valid_rows(step, num_trained)
    trains = split == "train" and not known.replayed_from and not _cannot_be_credited(known)
    has = (num_trained > 0) & valid[step.items[TRAJECTORIES].row] & trains
    of_token = np.repeat(has, np.diff(ends))
    return Credited(valid, has, np.diff(ends), trained & of_token, trained[of_token])


def _cannot_be_credited(known: Known) -> bool:
    """Whether only rollouts were asked for, and advantages would need what nobody scored."""
    needs = estimator_name(known) == "gae" or known.get("algorithm.use_kl_in_reward")
    return known.mode == "rollout_only" and bool(needs)


def _trained_tokens(step: Step) -> Truths:
    """[all tokens]; nothing predicts the first of a trajectory."""
    ids = step.items[f"{SEGMENTS}.token_ids"]
    authors = np.array(step[f"{SEGMENTS}.author"], object)
    trained: Truths = np.isin(authors, ("model", "demonstration"))[ids.owner]
    firsts = ids.ends[step.items[SEGMENTS].ends[:-1]]
    trained[firsts[firsts < len(trained)]] = False
    return trained


def _valid_rows(step: Step, num_trained: Integers) -> Truths:
    """Rollouts that neither the world nor their loop failed, and in which the model said something."""
    stops = np.array([stop != "error" for stop in step["stop"]], np.bool_)
    ends = np.concatenate([[0], np.cumsum(num_trained)])
    rows = step.items[TRAJECTORIES].ends
    valid: Truths = stops & (ends[rows[1:]] > ends[rows[:-1]]) & ~step["infra_failed"].astype(np.bool_)
    return valid


def estimator_name(known: Known) -> str:
    """The estimator that was configured, by its own name."""
    name, chosen = str(known.get("algorithm.name")), known.get("algorithm.adv_estimator")
    own = _ESTIMATORS.get(name, name)
    return own if own in _NOT_CHOSEN or not chosen else _ESTIMATORS.get(str(chosen), str(chosen))


def kept_scores(step: Step, name: str) -> Floats | None:
    """[tokens of trajectories that were trained on]; None where none was kept, or not one a token."""
    items = step.items.get(f"{TRAJECTORIES}.{name}")
    own = step.items[f"{TRAJECTORIES}.advantages"]
    fits = items is not None and len(items) and bool((items.lengths == own.lengths).all())
    return np.asarray(step[items.path], np.float64) if fits and items is not None else None


def sampled_tokens(step: Step) -> Truths:
    """[all tokens], whether the model wrote it."""
    authors = np.array([author == "model" for author in step[f"{SEGMENTS}.author"]], np.bool_)
    sampled: Truths = authors[step.items[f"{SEGMENTS}.token_ids"].owner]
    return sampled
