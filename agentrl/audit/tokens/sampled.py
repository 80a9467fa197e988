"""Check log-probabilities, policy versions and temperatures of tokens; vectorized over columns."""

from __future__ import annotations

import numpy as np

from agentrl.audit.checks import Checker
from agentrl.audit.reading.run_info import NO_CONFIG, RunInfo
from agentrl.audit.reading.table import Integers, Items, Step, Truths

_SEGMENTS = "trajectories.segments"


def _authors(step: Step, *names: str) -> Truths:
    return np.isin(np.array(step[f"{_SEGMENTS}.author"], object), names)


def _reduced(values: Integers, items: Items) -> Integers:
    """Return the sum of `values` in each list; `items` describes the lists."""
    ends = np.concatenate([[0], np.cumsum(values)])
    sums: Integers = ends[items.ends[1:]] - ends[items.ends[:-1]]
    return sums


def check_logprobs(check: Checker) -> None:
    """Check log-probabilities: one per sampled token, finite and at most 0; null for other segments."""
    step, path = check.step, f"{_SEGMENTS}.logprobs"
    num_tokens = step.items[f"{_SEGMENTS}.token_ids"].lengths
    check.require_lengths("logprobs", path, np.where(_authors(step, "model"), num_tokens, -1))
    values = step[path]
    check.require("logprobs", path, np.isfinite(values) & (values <= 1e-6), "finite and at most 0")


def check_versions(check: Checker, known: RunInfo, split: str) -> None:
    """Check that policy-version spans cover exactly the sampled segments, and that their versions are allowed."""
    step, path = check.step, f"{_SEGMENTS}.policy_versions"
    spans, versions, counts = step.items[path], step[f"{path}.version"], step[f"{path}.num_tokens"]
    sampled = _authors(step, "model")
    covered = _reduced(counts, spans)
    expected = np.where(sampled, step.items[f"{_SEGMENTS}.token_ids"].lengths, 0)
    check.require("policy versions", f"{path}.num_tokens", counts > 0, "1 or more tokens")
    check.ledger.count("policy versions", len(covered))
    for index in np.flatnonzero(covered != expected).tolist():
        row, column = step.list_place(path, index)
        check.problem("policy versions", row, column, f"{expected[index]} tokens in spans", f"{covered[index]}")
    above = spans.above
    assert above is not None
    same_trajectory = above.owner[spans.owner][1:] == above.owner[spans.owner][:-1]
    falls = np.concatenate([[False], same_trajectory & (versions[1:] < versions[:-1])])[: len(versions)]
    check.require("policy versions", f"{path}.version", ~falls & (versions >= 0), "not lower than the version before")
    if known.why_not_run:
        check.ledger.skip("policy versions", f"policy: {known.why_not_run}", len(versions))
        return
    # rollout_only never updates the weights, so the version is 0
    newest = 0 if known.mode == "rollout_only" else step.number - int(split == "train")
    staleness = int(known.number("trainer.max_staleness") or 0) if split == "train" else 0
    expected_versions = f"{newest - staleness} to {newest}" if staleness else str(newest)
    good = (versions <= newest) & (versions >= newest - staleness)
    check.require("policy versions", f"{path}.version", good, expected_versions)


def check_temperature(check: Checker, known: RunInfo, split: str) -> None:
    """Check temperatures: the configured value for sampled segments (1 if greedy), and 1 for other segments."""
    step, path = check.step, f"{_SEGMENTS}.temperature"
    sampled, values = _authors(step, "model"), step[path]
    check.require("temperature", path, sampled | (values == 1.0), "1 (not sampled)")
    if known.config is None:
        check.ledger.skip("temperature", NO_CONFIG, int(sampled.sum()))
        return
    greedy = split == "val" and not known.get("rollout.val_kwargs.do_sample")
    temperature = known.number("rollout.temperature" if split == "train" else "rollout.val_kwargs.temperature")
    expected = 1.0 if greedy else (temperature or 1.0)
    check.require("temperature", path, ~sampled | (values == expected), str(expected))
