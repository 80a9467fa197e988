"""Numbers beside tokens: advantages, log-probabilities, policy versions, temperatures; whole columns at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentrl.audit.checker import Checker
from agentrl.audit.known import NO_CONFIG, Known
from agentrl.audit.table import Integers, Items, Step, Truths

Floats = NDArray[np.float64]

_SEGMENTS = "trajectories.segments"
_FLOAT32 = float(np.finfo(np.float32).eps)
_TOLERANCE = 16 * _FLOAT32
"""Relative: advantages are kept as float32 values."""

_OF_GRPO = {"grpo", "gspo", "cispo", "gmpo", "sapo", "clip_cov", "kl_cov", "dppo", "reinforce"}
"""Algorithms whose advantages are GRPO's; only their losses differ."""


def _authors(step: Step, *names: str) -> Truths:
    return np.isin(np.array(step[f"{_SEGMENTS}.author"], object), names)


def _reduced(values: Integers, items: Items) -> Integers:
    """The sum over each list's items."""
    ends = np.concatenate([[0], np.cumsum(values)])
    sums: Integers = ends[items.ends[1:]] - ends[items.ends[:-1]]
    return sums


def check_logprobs(check: Checker) -> None:
    """One a token where the model wrote, finite and at most 0; nothing elsewhere."""
    step, path = check.step, f"{_SEGMENTS}.logprobs"
    num_tokens = step.items[f"{_SEGMENTS}.token_ids"].lengths
    check.hold_lengths("logprobs", path, np.where(_authors(step, "model"), num_tokens, -1))
    values = step[path]
    check.hold("logprobs", path, np.isfinite(values) & (values <= 1e-6), "a finite number, at most 0")


def check_versions(check: Checker, known: Known, split: str) -> None:
    """Spans cover a sampled segment and nothing else, and name the policy that the step was sampled with."""
    step, path = check.step, f"{_SEGMENTS}.policy_versions"
    spans, versions, counts = step.items[path], step[f"{path}.version"], step[f"{path}.num_tokens"]
    sampled = _authors(step, "model")
    covered = _reduced(counts, spans)
    wanted = np.where(sampled, step.items[f"{_SEGMENTS}.token_ids"].lengths, 0)
    check.hold("policy versions", f"{path}.num_tokens", counts > 0, "a number of tokens, 1 or more")
    check.ledger.look("policy versions", len(covered))
    for index in np.flatnonzero(covered != wanted).tolist():
        row, column = step.list_place(path, index)
        check.problem("policy versions", row, column, f"{wanted[index]} tokens covered", f"{covered[index]}")
    above = spans.above
    assert above is not None
    same_talk = above.owner[spans.owner][1:] == above.owner[spans.owner][:-1]
    falls = np.concatenate([[False], same_talk & (versions[1:] < versions[:-1])])[: len(versions)]
    check.hold("policy versions", f"{path}.version", ~falls & (versions >= 0), "never less than the one before it")
    if known.why_not_run:
        check.ledger.skip("policy versions", f"which policy: {known.why_not_run}", len(versions))
        return
    # a run that only rolls out, or only validates, has the weights it began with
    newest = 0 if known.mode == "rollout_only" else step.number - int(split == "train")
    staleness = int(known.number("trainer.max_staleness") or 0) if split == "train" else 0
    wanted_versions = f"{newest - staleness} to {newest}" if staleness else str(newest)
    good = (versions <= newest) & (versions >= newest - staleness)
    check.hold("policy versions", f"{path}.version", good, wanted_versions)


def check_temperature(check: Checker, known: Known, split: str) -> None:
    """As configured where the model wrote, 1 elsewhere; greedy sampling counts as 1."""
    step, path = check.step, f"{_SEGMENTS}.temperature"
    sampled, values = _authors(step, "model"), step[path]
    check.hold("temperature", path, sampled | (values == 1.0), "1, nobody sampled here")
    if known.config is None:
        check.ledger.skip("temperature", NO_CONFIG, int(sampled.sum()))
        return
    greedy = split == "val" and not known.get("rollout.val_kwargs.do_sample")
    asked = known.number("rollout.temperature" if split == "train" else "rollout.val_kwargs.temperature")
    expected = 1.0 if greedy else (asked or 1.0)
    check.hold("temperature", path, ~sampled | (values == expected), str(expected))


def check_advantages(check: Checker, known: Known, split: str, groups: Sequence[range]) -> None:
    """None where nothing is trained; else one a token, 0 off the model's tokens and the rollout's own on them."""
    step, path = check.step, "trajectories.advantages"
    if split == "train" and known.config is None:
        check.ledger.skip("advantages", NO_CONFIG, len(step.items["trajectories"]))
        return
    trained = _trained_tokens(step)
    starts = step.items[_SEGMENTS].ends
    token_ends = step.items[f"{_SEGMENTS}.token_ids"].ends[starts]
    counts = np.concatenate([[0], np.cumsum(trained)])
    num_trained = counts[token_ends[1:]] - counts[token_ends[:-1]]
    valid = _valid_rows(step, num_trained)
    trains = split == "train" and not known.replayed_from  # a replay credits nothing
    has = (num_trained > 0) & valid[step.items["trajectories"].row] & trains
    if not check.hold_lengths("advantages", path, np.where(has, np.diff(token_ends), -1)).all():
        return
    values = step[path]
    of_token = np.repeat(has, np.diff(token_ends))
    mask = trained[of_token]
    check.hold("advantages", path, mask | (values == 0.0), "0, nothing is trained here")
    name, chosen = known.get("algorithm.name"), known.get("algorithm.adv_estimator")
    estimator = chosen or ("grpo" if name in _OF_GRPO else name)
    if estimator not in ("grpo", "dr_grpo") or known.get("algorithm.use_kl_in_reward"):
        check.ledger.skip("advantages", f"estimator '{estimator}' of '{name}'", len(step))
        return
    by_std = estimator == "grpo" and known.get("algorithm.norm_adv_by_std_in_grpo") is not False
    expected = grpo(step["reward"], valid, groups, by_std)[step.items[path].row]
    close = np.abs(values - expected) <= _TOLERANCE * np.maximum(1.0, np.abs(expected))
    check.hold("advantages", path, ~mask | close, np.where(mask, expected, 0.0))


def _trained_tokens(step: Step) -> Truths:
    """[all tokens]; nothing predicts the first of a trajectory."""
    ids = step.items[f"{_SEGMENTS}.token_ids"]
    trained: Truths = _authors(step, "model", "demonstration")[ids.owner]
    firsts = ids.ends[step.items[_SEGMENTS].ends[:-1]]
    trained[firsts[firsts < len(trained)]] = False
    return trained


def _valid_rows(step: Step, num_trained: Integers) -> Truths:
    """Rollouts that neither the world nor their loop failed, and in which the model said something."""
    stops = np.array([stop != "error" for stop in step["stop"]], np.bool_)
    trains = _reduced(num_trained, step.items["trajectories"]) > 0
    valid: Truths = stops & trains & ~step["infra_failed"].astype(np.bool_)
    return valid


def grpo(rewards: Floats, valid: Truths, groups: Sequence[range], by_std: bool) -> Floats:
    """[rows] (r - mean) / (std + 1e-6) over a group's valid rollouts, unbiased; 0 where all rewards are alike.

    Rewards 1, 0, 0, 1: mean 0.5, std 0.5774, advantages 0.8660, -0.8660, -0.8660, 0.8660.
    """
    advantages = np.zeros(len(rewards))
    kept = rewards.astype(np.float32).astype(np.float64)  # training reads rewards as float32
    for rows in groups:
        members = np.arange(rows.start, rows.stop)[valid[rows.start : rows.stop]]
        scores = kept[members]
        if len(scores) == 0 or np.ptp(scores) <= 8 * _FLOAT32 * np.abs(scores).max():
            continue
        centred = scores - scores.mean()
        advantages[members] = centred / (scores.std(ddof=1) + 1e-6) if by_std else centred
    return advantages
