"""Recompute advantages from rewards, saved log-probabilities and values, and the configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.estimators import Floats, Trained, divergence, estimator_of
from agentrl.audit.reading.run_info import NO_CONFIG, Json, RunInfo
from agentrl.audit.reading.table import Step
from agentrl.audit.tokens.trained import (
    OF_PREFERENCES,
    SEGMENTS,
    TRAJECTORIES,
    Credited,
    credited,
    estimator_name,
    sampled_tokens,
    saved_scores,
    weights,
)

_TOLERANCE = 16 * float(np.finfo(np.float32).eps)
"""Relative tolerance: advantages have float32 precision."""

_BY_TURNS = ("gae", "reinforce_plus_plus")
"""Estimators that use turn rewards. If there are turn rewards, the audit does not check the advantages of these
estimators, because the audit does not recompute which token a turn reward belongs to."""


def check_advantages(check: Checker, known: RunInfo, split: str, groups: Sequence[range]) -> None:
    """Check that saved advantages equal the recomputed advantages.

    The advantages of a trajectory that was not trained on must be null. The advantage of a token that was not trained
    on must be 0.
    """
    step, path = check.step, f"{TRAJECTORIES}.advantages"
    if split == "train" and known.config is None:
        check.ledger.skip("advantages", NO_CONFIG, len(step.items[TRAJECTORIES]))
        return
    found = credited(step, known, split)
    if not check.require_lengths("advantages", path, np.where(found.has, found.lengths, -1)).all():
        return
    mask, values = found.mask_of_has, step[path]
    check.require("advantages", path, mask | (values == 0.0), "0 (not trained)")
    if not mask.any():
        return
    name = estimator_name(known)
    estimate = estimator_of(name, _options(known))
    why = _why_not(step, known, name) if estimate else f"estimator '{name}' of '{known.get('algorithm.name')}'"
    if estimate is None or why:
        check.ledger.skip("advantages", why, len(step))
        return
    expected = np.zeros(len(values))
    expected[mask] = estimate(_trained(step, known, found, groups))
    expected *= 1.0 if name in OF_PREFERENCES else _factors(step, found)
    close = np.abs(values - expected) <= _TOLERANCE * np.maximum(1.0, np.abs(expected))
    check.require("advantages", path, ~mask | close, expected)


def _options(known: RunInfo) -> dict[str, Json]:
    keys = ("gamma", "lam", "rft_threshold", "pairing")
    by_std = known.get("algorithm.norm_adv_by_std_in_grpo")
    own = {**{key: known.get(f"algorithm.{key}") for key in keys}, "norm_adv_by_std": by_std}
    return {**own, **(known.get("algorithm.adv_options") or {})}


def _why_not(step: Step, known: RunInfo, estimator: str) -> str:
    """Reason why the advantages cannot be recomputed; "" if they can be recomputed."""
    if estimator in _BY_TURNS and len(step.items["turn_rewards"]):
        return f"estimator '{estimator}' with turn rewards"
    if estimator == "gae" and saved_scores(step, "values") is None:
        return "no saved values of the critic"
    if known.get("algorithm.use_kl_in_reward") and saved_scores(step, "ref_logprobs") is None:
        return "no saved log-probabilities of the reference policy"
    fits = len(step[f"{SEGMENTS}.logprobs"]) == int(sampled_tokens(step).sum())
    return "" if fits else "number of log-probabilities differs from number of tokens"


def _trained(step: Step, known: RunInfo, found: Credited, groups: Sequence[range]) -> Trained:
    mask, values = found.mask_of_has, saved_scores(step, "values")
    return Trained(
        row=np.repeat(step.items[TRAJECTORIES].row, found.lengths)[found.mask],
        rewards=step["reward"],
        valid=found.valid,
        groups=groups,
        penalty=_penalty(step, known, found),
        values=None if values is None else values[mask],
        baselines=_baselines(step),
        found=step[f"{TRAJECTORIES}.advantages"][mask],
    )


def _factors(step: Step, found: Credited) -> Floats:
    """[tokens of trajectories that were trained on], the weight of each token's trajectory."""
    factors: Floats = np.repeat(weights(step)[found.has], found.lengths[found.has])
    return factors


def _baselines(step: Step) -> Floats:
    """[rows], the reward called `baseline`; NaN if there is none."""
    result = np.full(len(step), np.nan)
    named = np.array([name == "baseline" for name in step["rewards.name"]], np.bool_)
    result[step.items["rewards"].row[named]] = step["rewards.value"][named]
    return result


def _penalty(step: Step, known: RunInfo, found: Credited) -> Floats:
    """[trained tokens]: KL coefficient times divergence from the reference."""
    reference = saved_scores(step, "ref_logprobs")
    if reference is None or not known.get("algorithm.use_kl_in_reward"):
        return np.zeros(int(found.mask.sum()))
    saved = saved_scores(step, "old_logprobs")
    behaviour = np.zeros(len(found.mask))
    behaviour[sampled_tokens(step)] = step[f"{SEGMENTS}.logprobs"]
    policy = behaviour[found.mask] if saved is None else saved[found.mask_of_has]
    coefficients = np.repeat(step[f"{TRAJECTORIES}.kl_coef"], found.lengths)[found.mask]
    kind = str(known.get("algorithm.kl_penalty"))
    penalty: Floats = coefficients * divergence(kind, policy - reference[found.mask_of_has])
    return penalty
