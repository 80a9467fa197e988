"""Metrics of failures, computed by hand."""

from __future__ import annotations

import pytest

from agentrl.rollouts.failure_metrics import left_out_metrics, recovery_metrics
from agentrl.types.rollout import Outcome, Rollout, Stop, ToolCall

OK, ERROR, INFRA = Outcome.OK, Outcome.TOOL_ERROR, Outcome.INFRA_ERROR


def calls(*outcomes: Outcome, name: str = "f") -> list[ToolCall]:
    """One call a turn."""
    return [ToolCall(name, "{}", "", outcome, turn=turn) for turn, outcome in enumerate(outcomes)]


def rollout(*tool_calls: ToolCall, score: float = 0.0) -> Rollout:
    if any(call.outcome is INFRA for call in tool_calls):
        return Rollout([], Stop.ERROR, tool_calls=list(tool_calls), infra_failed=True)
    return Rollout([], Stop.FINISHED, {"score": score}, tool_calls=list(tool_calls))


def test_recovery_is_a_later_good_call_of_the_same_tool():
    rollouts = [
        rollout(*calls(ERROR, OK), score=1.0),
        rollout(*calls(ERROR, ERROR), score=1.0),
        rollout(*calls(OK, ERROR)),
        rollout(*calls(ERROR), *calls(OK, OK, name="g")),
        rollout(*calls(OK, OK), score=1.0),
    ]
    assert recovery_metrics(rollouts, 1.0) == {"tool/f/recovered": 0.25, "tool/f/success_after_error": 0.5}


def test_a_call_of_the_same_turn_is_no_recovery():
    beside = [ToolCall("f", "{}", "", outcome, turn=0) for outcome in (ERROR, OK)]
    assert recovery_metrics([rollout(*beside)], 1.0)["tool/f/recovered"] == 0.0
    assert recovery_metrics([rollout(*calls(OK))], 1.0) == {}


def test_left_out_rollouts_shift_calls_and_score():
    """n_1 = 3, d_1 = 0, n_2 = 2, d_2 = 1: weights 1, 1, 2."""
    rollouts = [rollout(score=0.0), rollout(*calls(OK), score=0.0), rollout(*calls(OK, OK), score=1.0)]
    found = left_out_metrics([*rollouts, rollout(*calls(OK, INFRA))])
    assert found == pytest.approx({"left_out/calls_shift": 1.25 - 1, "left_out/score_shift": 0.5 - 1 / 3})


def test_nothing_is_estimated_without_failures_of_calls_or_without_scores():
    service = Rollout([], Stop.FINISHED, infra_failed=True)  # a reward failed, not a call
    assert left_out_metrics([rollout(*calls(OK)), service]) == {}
    assert left_out_metrics([rollout(*calls(INFRA))]) == {}
    unscored = Rollout([], Stop.FINISHED, tool_calls=calls(OK))
    assert left_out_metrics([unscored, rollout(*calls(INFRA))]) == {"left_out/calls_shift": 0.0}


def test_calls_that_did_not_run_are_no_exposure():
    refused = calls(OK, Outcome.FORMAT_ERROR, Outcome.LIMIT_ERROR)
    found = left_out_metrics([rollout(*refused), rollout(), rollout(*calls(INFRA))])
    assert found["left_out/calls_shift"] == pytest.approx((2 / 3) / 0.5 - 1)
