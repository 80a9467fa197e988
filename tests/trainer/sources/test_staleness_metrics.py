"""Staleness of trained tokens, computed by hand, and the time without groups in flight."""

from __future__ import annotations

from agentrl.trainer.sources.staleness_metrics import IdleTime, staleness_metrics
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def group(*spans: tuple[int, int], stop: Stop = Stop.FINISHED) -> Group:
    num_tokens = sum(count for _, count in spans)
    versions = [VersionSpan(*span) for span in spans]
    said = Segment(Author.MODEL, [5] * num_tokens, logprobs=[-1.0] * num_tokens, policy_versions=versions)
    return Group(Task([]), [Rollout([Trajectory([Segment(Author.PROMPT, [1]), said])], stop)])


def test_groups_and_tokens_by_their_age():
    found = staleness_metrics([group((7, 4)), group((5, 3), (6, 1)), group((5, 2))], 7, max_staleness=2)
    assert found == {
        "staleness/mean": 4 / 3,
        "staleness/max": 2.0,
        "staleness/0": 1 / 3,
        "staleness/1": 0.0,
        "staleness/2": 2 / 3,
        "staleness/tokens_lag_0": 0.4,
        "staleness/tokens_lag_1": 0.1,
        "staleness/tokens_lag_2": 0.5,
        "staleness/partial": 1 / 3,
    }


def test_tokens_that_are_not_trained_on_are_not_counted():
    found = staleness_metrics([group((7, 1)), group((6, 9), stop=Stop.ERROR)], 7, max_staleness=1)
    assert (found["staleness/tokens_lag_0"], found["staleness/tokens_lag_1"]) == (1.0, 0.0)


def test_empty_input_has_no_staleness():
    assert set(staleness_metrics([], 3, max_staleness=1).values()) == {0.0}


def test_idle_time_counts_time_without_requests_in_flight():
    now = iter([0.0, 2.0, 5.0, 6.0, 10.0]).__next__
    idle = IdleTime(now)
    idle.set(False)  # at time 2
    idle.set(True)  # at time 5
    assert idle.take() == (2.0 + 1.0, 6.0)
    assert idle.take() == (4.0, 4.0)
