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
    """The sum over the items of each list."""
    ends = np.concatenate([[0], np.cumsum(values)])
    sums: Integers = ends[items.ends[1:]] - ends[items.ends[:-1]]
    return sums


def check_logprobs(check: Checker) -> None:
    """Check log-probabilities: one per sampled token, finite and at most 0; null for other segments."""
    step, path = check.step, f"{_SEGMENTS}.logprobs"
    num_tokens = step.items[f"{_SEGMENTS}.token_ids"].lengths
    check.hold_lengths("logprobs", path, np.where(_authors(step, "model"), num_tokens, -1))
    values = step[path]
    check.hold("logprobs", path, np.isfinite(values) & (values <= 1e-6), "a finite number, at most 0")


def check_versions(check: Checker, known: RunInfo, split: str) -> None:
    """Check that spans cover exactly the sampled segments and name an allowed policy version."""
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
    # rollout_only never updates the weights: version 0
    newest = 0 if known.mode == "rollout_only" else step.number - int(split == "train")
    staleness = int(known.number("trainer.max_staleness") or 0) if split == "train" else 0
    wanted_versions = f"{newest - staleness} to {newest}" if staleness else str(newest)
    good = (versions <= newest) & (versions >= newest - staleness)
    check.hold("policy versions", f"{path}.version", good, wanted_versions)


def check_temperature(check: Checker, known: RunInfo, split: str) -> None:
    """Check temperatures: as configured for sampled segments, else 1; greedy sampling counts as 1."""
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
