"""Which rollouts of a run are saved as text samples."""

from __future__ import annotations

from agentrl.reporting.sample_choice import instructive, over_time
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task


def validated(uids: str, better_by: float = 0.0) -> list[Group]:
    """A group of two for each uid; later groups have better scores."""
    return [
        Group(
            Task([], "", "sums", row, uid),
            [Rollout([], Stop.FINISHED, {"score": 2.0 * row + n + better_by}) for n in (0, 1)],
        )
        for row, uid in enumerate(uids)
    ]


def test_best_worst_and_median_rollouts_are_shown():
    chosen = instructive(validated("abcd"))
    assert [(sample.task.uid, sample.number) for sample in chosen] == [("d", 1), ("b", 1), ("a", 0)]
    assert instructive([]) == []
    assert len(instructive(validated("a"))) == 2


def test_samples_come_from_the_first_middle_and_last_step(tmp_path):
    store = TrajectoryStore(tmp_path, split="val")
    for step in (0, 10, 20, 30, 40):
        store.write(step, validated("abc", better_by=step))
    kept = list(over_time(instructive(validated("abc", better_by=40)), store))
    assert [(sample.task.uid, sample.number, sample.step) for sample in kept[:3]] == [
        ("c", 1, 0),
        ("c", 1, 20),
        ("c", 1, 40),
    ]
    assert [sample.rollout.reward for sample in kept[:3]] == [5.0, 25.0, 45.0]
    assert len(kept) == 9


def test_samples_missing_in_earlier_steps_are_skipped(tmp_path):
    store = TrajectoryStore(tmp_path, split="val")
    store.write(0, validated("a"))
    store.write(5, validated("ab"))
    kept = list(over_time(instructive(validated("ab")), store))
    assert [(sample.task.uid, sample.step) for sample in kept] == [("b", 5), ("a", 0), ("a", 5), ("a", 0), ("a", 5)]
    nothing = over_time(instructive(validated("a")), TrajectoryStore(tmp_path / "none", split="val"))
    assert [sample.step for sample in nothing] == [None, None]
