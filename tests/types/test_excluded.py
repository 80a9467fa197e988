"""Reasons why a rollout cannot be trained on."""

from __future__ import annotations

import pytest

from agentrl.rollouts.metrics import excluded_metrics
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

SAMPLED = Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.MODEL, [5], [-1.0], [VersionSpan(0, 1)])])
CASES = [
    (Rollout([SAMPLED], Stop.FINISHED), None),
    (Rollout([SAMPLED], Stop.ERROR), Excluded.FAILED),
    (Rollout([SAMPLED], Stop.ERROR, infra_failed=True), Excluded.INFRA_ERROR),
    (Rollout([], Stop.FINISHED), Excluded.NO_TRAINED_TOKENS),
]


@pytest.mark.parametrize(("rollout", "reason"), CASES)
def test_a_rollout_is_valid_exactly_without_a_reason(rollout, reason):
    assert rollout.excluded == reason
    assert rollout.valid == (reason is None)


def test_counts_by_reason():
    metrics = excluded_metrics([Group(Task([]), [rollout for rollout, _ in CASES])])
    reasons = ("failed", "infra_error", "no_trained_tokens")
    assert metrics == {f"rollout/excluded/{reason}": 1.0 for reason in reasons}
