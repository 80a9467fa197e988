"""Finding rollouts by their properties and by position, reading as little as possible."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from stored_runs import group, rollout

from agentrl.errors import DataError, UnknownNameError
from agentrl.store import StoredRollout, TrajectoryStore, encode
from agentrl.types.rollout import Group, Outcome, Rollout, Stop

CALLS = [("search", Outcome.OK), ("search", Outcome.TIMEOUT), ("calculator", Outcome.OK)]


def random_rollout(draw: random.Random, number: int) -> Rollout:
    calls = tuple(draw.sample(CALLS, draw.randrange(3)))
    return rollout(number, draw.choice([-1.0, 0.0, 0.5, 1.0]), draw.choice([Stop.FINISHED, Stop.DEADLINE]), calls)


def random_groups(draw: random.Random, step: int) -> list[Group]:
    return [
        group(f"{step}-{row}\ud800", *(random_rollout(draw, n) for n in range(4)), data_source=draw.choice(["a", "b"]))
        for row in range(5)
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrajectoryStore:
    """Three steps of 20 rollouts in row groups of 3."""
    store = TrajectoryStore(tmp_path_factory.mktemp("trajectories"), split="val")
    draw = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "ROWS_PER_BATCH", 3)
        for step in (1, 2, 7):
            store.write(step, random_groups(draw, step))
    return store


def place(stored: StoredRollout) -> tuple[int, str, int]:
    return stored.step, stored.task.uid, stored.number


def called(stored: StoredRollout, tool: str | None = None, outcome: Outcome | None = None) -> bool:
    return any(tool in (None, call.name) and outcome in (None, call.outcome) for call in stored.rollout.tool_calls)


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, lambda stored: True),
        ({"steps": {2, 3, 7}}, lambda stored: stored.step in (2, 7)),
        ({"uid": "2-3\ud800"}, lambda stored: stored.task.uid == "2-3\ud800"),
        ({"uid": ""}, lambda stored: False),
        ({"data_source": "b"}, lambda stored: stored.task.data_source == "b"),
        ({"stop": Stop.DEADLINE}, lambda stored: stored.rollout.stop is Stop.DEADLINE),
        ({"min_reward": 0.5}, lambda stored: stored.rollout.reward >= 0.5),
        ({"max_reward": 0.0}, lambda stored: stored.rollout.reward <= 0.0),
        ({"min_reward": 0.2, "max_reward": 0.9}, lambda stored: 0.2 <= stored.rollout.reward <= 0.9),
        ({"min_reward": 2.0}, lambda stored: False),
        ({"tool": "search"}, lambda stored: called(stored, tool="search")),
        ({"outcome": Outcome.OK}, lambda stored: called(stored, outcome=Outcome.OK)),
        ({"tool": "search", "outcome": Outcome.OK}, lambda stored: called(stored, "search", Outcome.OK)),
        ({"tool": "calculator", "outcome": Outcome.TIMEOUT}, lambda stored: False),
        (
            {"tool": "search", "stop": Stop.FINISHED, "max_reward": 0.0, "data_source": "a"},
            lambda stored: (
                called(stored, tool="search")
                and (stored.rollout.stop, stored.task.data_source) == (Stop.FINISHED, "a")
                and stored.rollout.reward <= 0.0
            ),
        ),
    ],
)
def test_scan_equals_a_filter_over_all_rollouts(
    store: TrajectoryStore, asked: dict[str, object], wanted: Callable[[StoredRollout], bool]
) -> None:
    every = [
        StoredRollout(step, "val", number, group.task, rollout, [])
        for step in store.steps
        for group in store.groups(step)
        for number, rollout in enumerate(group.rollouts)
    ]
    assert len(every) == 60
    assert [place(stored) for stored in store.scan(**asked)] == [place(stored) for stored in every if wanted(stored)]


def test_row_groups_that_cannot_match_are_not_read(store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, number: int, *rest: object, **options: object) -> object:
        read.append(number)
        return whole(file, number, *rest, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert store.rollout(2, "2-1\ud800", 3).number == 3
    assert set(read) == {1, 2}  # rows 4 to 7 belong to the group, and row groups have 3 rows
    read.clear()
    assert list(store.scan(min_reward=2.0)) == []
    assert read == []


def test_only_the_columns_asked_for_are_read(store: TrajectoryStore) -> None:
    full, part = next(store.scan()), next(store.scan(columns=["reward", "trajectories.messages"]))
    assert (part.split, place(part)) == ("val", place(full))
    assert part.rollout.rewards == full.rollout.rewards
    assert part.rollout.trajectories[0].messages == full.rollout.trajectories[0].messages != []
    assert (list(part.rollout.trajectories[0].segments), part.task.messages, part.rollout.seed) == ([], [], 0)
    assert next(store.scan(columns=[])).rollout.trajectories == []
    (segments,) = next(store.scan(columns=["trajectories.segments"])).rollout.trajectories
    assert list(segments.segments) == list(full.rollout.trajectories[0].segments)


def test_missing_column_is_refused_before_reading(store: TrajectoryStore) -> None:
    with pytest.raises(UnknownNameError, match="no column 'reward_s': did you mean 'rewards'"):
        store.scan(columns=["reward_s"])


def test_one_rollout_is_found_by_its_address(store: TrajectoryStore) -> None:
    stored = store.rollout(7, "7-4\ud800", 2)
    assert (place(stored), stored.rollout.seed) == ((7, "7-4\ud800", 2), 2**64 - 3)
    with pytest.raises(DataError, match=r"step-000007\.parquet: no rollout 4 of group '7-4"):
        store.rollout(7, "7-4\ud800", 4)
    with pytest.raises(DataError, match="no trajectories of step 3; saved steps: 1 to 7"):
        store.rollout(3, "7-4", 0)
