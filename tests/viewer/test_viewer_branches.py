"""The trajectories of a rollout as a tree."""

from __future__ import annotations

import json

import pytest
from viewer_runs import group, model, write_run

from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory
from agentrl.viewer.branches import branches


def opened(number: int, kind: str, parent: object = None, segment: object = None, **more: object) -> Operation:
    facts = {"parent": parent, "segment": segment, **more}
    detail = json.dumps({name: value for name, value in facts.items() if value is not None})
    return Operation(OperationKind(kind), number, 0, 0, 1, 0, 1, 0, detail)


def of(*openings: Operation, count: int | None = None) -> Rollout:
    one = [Segment(Author.PROMPT, [1, 2]), model(3, 4), Segment(Author.TOOL, [6]), model(7)]
    count = len(openings) if count is None else count
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "done"}]
    return Rollout([Trajectory(one, messages) for _ in range(count)], Stop.FINISHED, operations=list(openings))


def shape(rollout: Rollout) -> list[tuple[int, int, int | None]]:
    """(number, depth, parent) in the order of the tree."""
    return [(each["number"], each["depth"], each["parent"]) for each in branches(rollout)]


def test_sub_agents_are_below_the_turn_that_started_them():
    rollout = of(
        opened(2, "task"), opened(1, "messages", 2, 3), opened(0, "messages", 2, 1), opened(3, "messages", 0, 1)
    )
    assert shape(rollout) == [(2, 0, None), (0, 1, 2), (3, 2, 0), (1, 1, 2)]
    turns = {each["number"]: each["turn"] for each in branches(rollout)}
    assert turns == {2: None, 0: 0, 3: 0, 1: 1}


def test_what_continues_a_trajectory_has_its_level_and_comes_after_what_was_started():
    rollout = of(
        opened(0, "task"),
        opened(1, "messages", 0, 1),
        opened(2, "restart", 0),
        opened(3, "messages", 2, 1),
        opened(4, "render", 2),
    )
    assert shape(rollout) == [(0, 0, None), (1, 1, 0), (2, 0, 0), (3, 1, 2), (4, 0, 2)]


def test_rollouts_without_operations_are_a_list():
    assert shape(of(count=3)) == [(0, 0, None), (1, 0, None), (2, 0, None)]


def test_remarks_are_shown():
    rollout = of(opened(0, "task"), opened(1, "messages", 0, 1, remark="the client asked again"))
    assert [each["remark"] for each in branches(rollout)] == ["", "the client asked again"]


@pytest.mark.parametrize(
    "openings",
    [
        [opened(0, "restart", 1), opened(1, "restart", 0)],  # a circle
        [opened(0, "restart", 0), opened(1, "restart", 9)],
        [opened(0, "restart", "x", [], remark=7), opened(1, "messages", True, -5)],
        [opened(0, "task")._replace(detail="["), opened(1, "task")._replace(detail="[1]")],
        [opened(7, "task"), opened(-1, "task")],
    ],
)
def test_damaged_records_lose_no_trajectory(openings):
    found = branches(of(*openings, count=2))
    assert sorted(each["number"] for each in found) == [0, 1]
    assert all(isinstance(each["remark"], str) for each in found)


def test_a_deep_chain_is_shown_without_recursion():
    openings = [opened(0, "task"), *(opened(number, "messages", number - 1, 1) for number in range(1, 3000))]
    assert [each["number"] for each in branches(of(*openings))] == list(range(3000))


def test_branches_that_are_not_trained_on_are_marked():
    rollout = of(opened(0, "task"), opened(1, "messages", 0, 1))
    rollout.trajectories[1].weight = 0.0
    assert [each["weight"] for each in branches(rollout)] == [1.0, 0.0]


def test_the_page_receives_the_tree(view, tmp_path):
    rollout = of(opened(1, "task"), opened(0, "messages", 1, 1))
    told = view(write_run(tmp_path, {1: [group("a", rollout)]})).json(
        "api/rollout", split="train", step=1, number=0, uid="a"
    )
    assert [(each["number"], each["kind"], each["turn"]) for each in told["branches"]] == [
        (1, "task", None),
        (0, "messages", 0),
    ]
