"""Curricula: order by a column, and sampling by measured pass rates; both resume at any draw."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config.data import CurriculumConfig, DataConfig
from agentrl.data.curriculum import PassRateOrder, column_keys
from agentrl.data.order import TaskOrder, task_order
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory


def tasks(tmp_path, *columns):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": "x", **each}) + "\n" for each in columns))
    return load_tasks([str(path)], DataConfig())


def group(row, *scores, failed=()):
    """A group of one row: rollouts with the given scores, plus failed rollouts."""
    told = Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.DEMONSTRATION, [2])])
    rollouts = [Rollout([told], Stop.FINISHED, {"score": score}) for score in scores]
    rollouts += [Rollout([told], Stop.ERROR, {"score": score}) for score in failed]
    return Group(Task([], index=row), rollouts)


def by_rate(num_rows=8, seed=0, shuffle=True, **options):
    config = CurriculumConfig(by="pass_rate", **options)
    return PassRateOrder(TaskOrder(num_rows, seed, shuffle), config, 1.0, seed, lambda row: row)


def test_rows_are_sorted_by_column_with_ties_shuffled_each_epoch(tmp_path):
    levels = [3, 1, 2, 1, 3, 1, 2, 1]
    table = tasks(tmp_path, *({"level": level} for level in levels))
    keys = column_keys(table, CurriculumConfig(by="level"))
    order = task_order(table.file_sizes, (), 5, True, keys)
    epochs = [[order.at(epoch * 8 + place).row for place in range(8)] for epoch in range(2)]
    for rows in epochs:
        assert [levels[row] for row in rows] == sorted(levels)
        assert sorted(rows) == list(range(8))
    assert epochs[0] != epochs[1]
    assert [task_order([8], (), 5, False, keys).at(place).row for place in range(8)] == [1, 3, 5, 7, 2, 6, 0, 4]


def test_column_keys_sort_text_by_the_listed_values(tmp_path):
    table = tasks(tmp_path, {"level": "hard"}, {"level": "easy"}, {"extra_info": {"level": "medium"}})
    config = CurriculumConfig(by="extra_info.level", values=("easy", "medium", "hard"))
    assert column_keys(table, config) == [2, 0, 1]
    assert column_keys(table, config.model_copy(update={"descending": True})) == [-2, 0, -1]


def test_files_keep_their_weights_and_each_is_ordered(tmp_path):
    order = task_order([3, 3], (2, 1), 0, True, [3.0, 1.0, 2.0, 30.0, 10.0, 20.0])
    rows = [order.at(position).row for position in range(9)]
    assert [row for row in rows if row < 3] == [1, 2, 0, 1, 2, 0]
    assert [row for row in rows if row >= 3] == [4, 5, 3]


@pytest.mark.parametrize(
    ("columns", "config", "expected"),
    [
        (
            [{"level": 1}, {"levle": 2}],
            {},
            "row 1 (line 2): data.curriculum.by: no column 'level'; did you mean 'levle",
        ),
        ([{"level": "hard"}], {}, "'level' is 'hard', expected a number (list other values in data.curriculum.values)"),
        ([{"level": True}], {}, "'level' is True, expected a number"),
        ([{"level": "hrad"}], {"values": ("easy", "hard")}, "'level' is 'hrad': did you mean 'hard'? (data.curriculum"),
    ],
)
def test_row_that_does_not_fit_is_named_with_its_place(tmp_path, columns, config, expected):
    with pytest.raises(DataError) as caught:
        column_keys(tasks(tmp_path, *columns), CurriculumConfig(by="level", **config))
    assert expected in str(caught.value)


def test_unmeasured_rows_are_drawn_once_per_epoch():
    order, plain = by_rate(), TaskOrder(8, 0, True)
    assert [order.at(position) for position in range(20)] == [plain.at(position) for position in range(20)]


def test_the_pass_rate_is_a_running_mean_of_what_counts():
    order = by_rate(smoothing=0.5, floor=0.1, target=0.5)
    order.observe([group(0, 1.0, 1.0, 0.0, 0.5)])  # 2 of 4 reach the threshold
    assert order.probability(0) == 1.0
    order.observe([group(0, 0.0, 0.0, failed=[1.0])])  # 0.5 + 0.5 (0 - 0.5) = 0.25
    assert order.probability(0) == pytest.approx(0.1 + 0.9 * 0.5)
    order.observe([group(0, failed=[1.0])])
    assert order.probability(0) == pytest.approx(0.1 + 0.9 * 0.5)
    order.observe([group(1, 1.0), group(2, 0.0)])
    assert order.probability(1) == order.probability(2) == pytest.approx(0.1)
    assert order.probability(3) == 1.0
    assert by_rate(target=1.0).probability(0) == 1.0


def test_tasks_near_the_target_are_drawn_more_often_and_none_is_given_up():
    order = by_rate(num_rows=4, floor=0.2)
    order.observe([group(0, 1.0), group(1, 0.0), group(2, 1.0, 0.0)])
    drawn = Counter(order.at(position).row for position in range(2400))
    assert drawn[2] == drawn[3] == pytest.approx(1000, abs=10)
    assert drawn[0] == pytest.approx(200, abs=50)
    assert drawn[1] == pytest.approx(200, abs=50)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0])), max_size=30), st.integers(0, 29))
def test_a_saved_order_resumes_without_difference(seen, stop):
    """Holds in any order of results, and if the run was saved after a look at the next draw."""
    order, others, rows, again = by_rate(6), None, [], []
    for position, (row, score) in enumerate(seen):
        if position == stop:
            others = by_rate(6)
            others.load_state_dict(json.loads(json.dumps(order.state_dict())))
        rows.append(order.at(position))
        order.observe([group(row, score)])
        if others:
            again.append(others.at(position))
            others.observe([group(row, score)])
    assert again == rows[stop:]


def test_draws_are_fixed_and_made_in_order():
    order = by_rate()
    first = order.at(0)
    order.observe([group(first.row, 0.0)])
    assert order.at(0) == first
    with pytest.raises(ValueError, match="in order"):
        order.at(5)


def test_curriculum_may_start_in_a_resumed_run():
    order, plain = by_rate(), TaskOrder(8, 0, True)
    assert [order.at(position) for position in range(11, 16)] == [plain.at(position) for position in range(11, 16)]


def test_metrics_have_the_measured_rows_and_the_skipped_share():
    order = by_rate(num_rows=2, floor=0.01)
    assert order.metrics() == {"curriculum/measured_rows": 0.0}
    order.observe([group(0, 1.0, 1.0), group(1, 1.0, 0.0)])
    drawn = [order.at(position).row for position in range(20)]
    metrics = order.metrics()
    assert metrics["curriculum/pass_rate"] == 0.75
    assert metrics["curriculum/measured_rows"] == 2.0
    assert 0.4 < metrics["curriculum/drawn_share"] < 0.7
    assert drawn.count(1) > 17
