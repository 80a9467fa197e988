"""Evaluation numbers compared with counts by hand, and their layout in 80 columns."""

from __future__ import annotations

import io
import json
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest
from rich.console import Console

from agentrl.reporting.evaluation import evaluation
from agentrl.reporting.evaluation_table import print_evaluation
from agentrl.reporting.report_facts import sampling_of
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.stats.intervals import mean_estimate
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def rollout(score: float | None, stop: Stop = Stop.FINISHED, **fields) -> Rollout:
    """A prompt of one token, an answer of two."""
    answer = Segment(Author.MODEL, [2, 3], [0.0, 0.0], [VersionSpan(0, 2)])
    trajectories = [Trajectory([Segment(Author.PROMPT, [1]), answer])]
    return Rollout(trajectories, stop, {} if score is None else {"score": score}, **fields)


def group(index: int, *scores: float, source: str = "a") -> Group:
    return Group(Task([], index=index, uid=f"{source}-{index}", data_source=source), [rollout(each) for each in scores])


GROUPS = [group(0, 1.0, 0.0, 1.0, 1.0), group(1, 0.0, 0.0, 0.0, 1.0), group(0, 0.5, 1.0, source="b")]


def test_means_are_over_rollouts_and_their_intervals_over_tasks():
    found = evaluation(GROUPS, 1.0)
    assert list(found.sources) == ["a", "b"]
    reward = found.sources["a"].reward
    assert reward == mean_estimate([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]], 0.95)
    assert reward is not None
    assert (reward.value, reward.num) == (0.5, 2)
    assert found.overall.reward is not None
    assert found.overall.reward.value == pytest.approx(5.5 / 10)
    assert found.overall.success is not None
    assert found.overall.success.value == 0.5
    assert (found.overall.num_tasks, found.overall.num_rollouts) == (3, 10)


def test_pass_at_k_equals_all_draws_of_k_attempts():
    found = evaluation(GROUPS, 1.0).overall
    attempts = [[each.reward >= 1.0 for each in group.rollouts] for group in GROUPS]
    for k in (1, 2, 4):
        drawn = [list(combinations(of_task, k)) for of_task in attempts if len(of_task) >= k]
        assert found.pass_at_k[k].value == pytest.approx(fmean(fmean(map(any, ways)) for ways in drawn))
        assert found.pass_hat_k[k].value == pytest.approx(fmean(fmean(map(all, ways)) for ways in drawn))
        assert found.pass_at_k[k].num == len(drawn)
    assert list(found.pass_at_k) == [1, 2, 4]
    assert list(evaluation([group(0, 1.0, 0.0, 1.0)], 1.0).overall.pass_at_k) == [1, 2, 3]
    assert list(evaluation([group(0, 1.0)], 1.0).overall.pass_at_k) == [1]


def test_draws_of_one_row_are_one_task():
    again = Group(Task([], index=0, uid="a-0 again", data_source="a"), [rollout(1.0), rollout(0.0)])
    found = evaluation([GROUPS[0], again], 1.0).overall
    assert (found.num_tasks, found.num_rollouts) == (1, 6)
    assert list(found.pass_at_k) == [1, 2, 4, 6]


def test_failed_and_unscored_rollouts_are_counted_and_excluded():
    failed = [rollout(None, Stop.ERROR, error="x"), rollout(None, infra_failed=True), rollout(None)]
    empty = Group(Task([], index=7, data_source="a"), [rollout(None, Stop.ERROR)])
    found = evaluation([Group(GROUPS[0].task, [*GROUPS[0].rollouts, *failed]), empty], 1.0).overall
    assert (found.num_rollouts, found.num_failed, found.num_infra_failed, found.num_unscored) == (8, 3, 1, 1)
    assert (found.num_tasks, found.num_empty) == (2, 1)
    assert found.reward is not None
    assert (found.reward.value, found.reward.num) == (0.75, 1)
    assert found.metrics["reward/mean"] == 0.75
    assert found.metrics["rollouts/failed"] == pytest.approx(2 / 7)
    nothing = evaluation([empty], 1.0).overall
    assert (nothing.reward, nothing.success, dict(nothing.pass_at_k)) == (None, None, {})


def test_values_keep_the_metrics_of_validation_and_are_json():
    found = evaluation(GROUPS, 1.0)
    values = json.loads(json.dumps(found.values(), allow_nan=False))
    assert {k: v for k, v in values.items() if k.startswith("val/")} == {
        **{f"val/{name}": value for name, value in rollout_metrics(GROUPS).items()},
        "val/num_tasks": 3.0,
    }
    assert values["overall"]["reward"].keys() == {"value", "low", "high", "num"}
    assert values["sources"]["b"]["pass_hat_k"]["2"]["value"] == 0.0
    assert values["level"] == 0.95


def test_rollouts_without_tokens_have_no_lengths_and_texts_nothing_but_scores():
    imported = [Group(each.task, [Rollout([], Stop.FINISHED, r.rewards) for r in each.rollouts]) for each in GROUPS]
    metrics = evaluation(imported, 1.0).overall.metrics
    assert "tool_calls/mean" in metrics
    assert not [name for name in metrics if name.startswith(("response_length", "num_turns"))]
    texts = evaluation(imported, 1.0, texts_only=True).overall.metrics
    assert {name.partition("/")[0] for name in texts} == {"reward", "success", "success_all", "groups", "rollouts"}


def shown(*groups: Group) -> list[str]:
    out = io.StringIO()
    how = sampling_of({"rollout": {"val_kwargs": {"do_sample": False, "n": 2}}})
    print_evaluation(evaluation(groups, 1.0), Path("eval.json"), Console(file=out, width=80), how)
    assert "\x1b" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return [line.strip() for line in lines]


def test_tables_show_the_results():
    lines = shown(*GROUPS)
    assert [line.split()[:3] for line in lines if "%" in line and line[0] in "ab"] == [
        ["a", "2", "8"],
        ["b", "1", "2"],
        ["all", "3", "10"],
    ]
    (two,) = [line for line in lines if line.startswith("2 ")]
    assert "83.3%" in two  # 1, 0.5 and 1 of the pairs of the three tasks contain a success
    assert "sampling: greedy, 2 rollouts per task" in lines
    assert "mean per rollout: turns 1, response tokens 2, tool calls 0" in lines
    assert "stop reasons: finished 100.0%" in lines
    assert lines[-1] == "all results: eval.json"


def test_names_from_data_and_models_are_text_that_fits():
    calls = [ToolCall("to\x1b[31mol\u202e" + "x" * 90, "{}", "", outcome, 123456.0) for outcome in Outcome]
    hostile = rollout(-123456.789, Stop.MAX_ASSISTANT_TURNS, tool_calls=calls)
    source = "evil\x1b]0;title\x07[bold]" + "y" * 100
    lines = shown(Group(Task([], data_source=source), [hostile, rollout(98765.4321), rollout(None, Stop.ERROR)]))
    assert any("evil" in line for line in lines)
    assert "failed: 1 of 3 rollouts, not in the results" in lines
    assert "success if failed rollouts count as failures: 33.3%" in lines


def test_a_long_list_of_sources_is_truncated_with_a_note():
    lines = shown(*(group(0, 1.0, source=f"source-{number:03}") for number in range(50)))
    assert "20 more data sources: see the file" in lines
    assert any(line.startswith("all ") for line in lines)
