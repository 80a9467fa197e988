"""Metrics of a step, computed by hand."""

from __future__ import annotations

import math

import pytest

from agentrl.rollouts.metrics import rollout_metrics
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def trajectory(*lengths: int) -> Trajectory:
    """A prompt of two tokens, then the model and a tool in turn."""
    segments = [Segment(Author.PROMPT, [1, 2])]
    for number, length in enumerate(lengths):
        ids = [3] * length
        if number % 2:
            segments.append(Segment(Author.TOOL, ids))
        else:
            segments.append(Segment(Author.MODEL, ids, [0.0] * length, [VersionSpan(0, length)]))
    return Trajectory(segments)


def rollout(score: float, *lengths: int, **fields) -> Rollout:
    rewards = {"score": score, **fields.pop("rewards", {})}
    return Rollout([trajectory(*lengths)], fields.pop("stop", Stop.FINISHED), rewards, **fields)


def group(*rollouts: Rollout, source: str = "a") -> Group:
    return Group(Task([], data_source=source), list(rollouts))


def called(name: str, outcome: Outcome = Outcome.OK, duration_s: float = 0.0, num_tokens: int = 0) -> ToolCall:
    return ToolCall(name, "{}", "", outcome, duration_s, num_tokens)


def test_rewards_and_sizes_are_reported():
    two = Rollout([trajectory(3), trajectory(4, 5, 6)], Stop.DEADLINE, {"score": 0.0, "style": 1.0})
    metrics = rollout_metrics([group(rollout(1.0, 2, rewards={"style": 0.5}), two), group(rollout(0.5, 1), source="b")])
    expected = {
        "reward/mean": 0.5,
        "reward/std": math.sqrt((0.25 + 0.25) / 3),
        "reward/style": 0.75,
        "success": 1 / 3,
        "success/a": 0.5,
        "success/b": 0.0,
        "response_length/mean": (2 + 18 + 1) / 3,
        "response_length/max": 18,
        "num_turns/mean": (1 + 3 + 1) / 3,
        "num_turns/max": 3,
        "tool_calls/mean": 0,
        "stop/finished": 2 / 3,
        "stop/deadline": 1 / 3,
        "stop/error": 0,
        "groups/zero_variance": 0.5,
        "rollouts/failed": 0,
        "rollouts/infra_failed": 0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_success_threshold_is_used():
    assert rollout_metrics([group(rollout(0.5, 1))], success_threshold=0.5)["success"] == 1.0


def test_rollouts_that_failed_from_outside_are_only_counted():
    failed = Rollout([trajectory(50)], Stop.ERROR, {}, tool_calls=[called("x")], infra_failed=True)
    metrics = rollout_metrics([group(rollout(1.0, 1), failed, rollout(1.0, 1))])
    assert metrics["reward/mean"] == 1.0
    assert metrics["response_length/max"] == 1
    assert metrics["tool_calls/mean"] == 0
    assert metrics["groups/zero_variance"] == 1.0
    assert metrics["rollouts/infra_failed"] == metrics["rollouts/failed"] == pytest.approx(1 / 3)
    shares = ("rollouts/failed", "rollouts/infra_failed", "rollouts/dropped")
    assert rollout_metrics([group(failed)]) == dict.fromkeys([*shares, "rollouts/num_dropped"], 1.0)
    assert (metrics["success"], metrics["success_all"]) == (1.0, pytest.approx(2 / 3))
    unscored = Rollout([trajectory(1)], Stop.FINISHED, {}, infra_failed=True)  # the reward service failed
    crashed = Rollout([trajectory(1)], Stop.ERROR, {})
    metrics = rollout_metrics([group(unscored, crashed, rollout(1.0, 1), rollout(1.0, 1))])
    assert [metrics[name] for name in shares] == [0.25, 0.25, 0.5]
    assert rollout_metrics([]) == {}


def test_tool_metrics_are_computed_per_tool():
    calls = [called("search", duration_s=float(second), num_tokens=10) for second in range(1, 20)]
    calls += [called("search", Outcome.TIMEOUT, 20.0), called("serach", Outcome.FORMAT_ERROR)]
    metrics = rollout_metrics([group(rollout(1.0, 1, tool_calls=calls[:10]), rollout(0.0, 1, tool_calls=calls[10:]))])
    assert metrics["tool_calls/mean"] == 10.5
    expected = {"calls": 20, "ok": 19, "timeout": 1, "p50_s": 10.5, "p95_s": 19.05, "tokens_per_call": 9.5}
    assert {name: metrics[f"tool/search/{name}"] for name in expected} == pytest.approx(expected)
    assert (metrics["tool/unknown/calls"], metrics["tool/unknown/format_error"]) == (1, 1)
    assert "tool/serach/calls" not in metrics


def test_invalid_call_of_a_known_tool_counts_for_that_tool():
    calls = [called("add"), called("add", Outcome.FORMAT_ERROR), called("add", Outcome.LIMIT_ERROR)]
    metrics = rollout_metrics([group(rollout(1.0, 1, tool_calls=calls))])
    assert metrics["tool/add/calls"] == 3
    assert metrics["tool/add/format_error"] == 1
