"""Advantages are saved beside the trajectory they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from stored_runs import group, rollout, trajectory

from agentrl.algos.credit import samples_of
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample


def a_step() -> list[Group]:
    """Rollouts with several trajectories, equal trajectories, no trained token, and failures."""
    several = Rollout([trajectory(), trajectory(3), trajectory(3), trajectory(4, 5)], Stop.FINISHED)
    failed = Rollout([trajectory(6)], Stop.ERROR)
    return [group("a", rollout(0), failed, several), group("b", Rollout([], Stop.ERROR), rollout(0))]


def credited(groups: list[Group]) -> list[Sample]:
    """Samples, each with its own number as advantage."""
    return [replace(s, advantages=[number + 1.0] * len(s.token_ids)) for number, s in enumerate(samples_of(groups))]


def stored(folder: Path, samples: list[Sample]) -> list[list[list[float] | None]]:
    store = TrajectoryStore(folder)
    store.write(1, a_step(), samples)
    return [stored.advantages for stored in store.scan()]


def test_each_trajectory_has_the_advantages_of_its_sample(tmp_path: Path) -> None:
    several = [None, [2.0] * 3, [3.0] * 3, [4.0] * 4]
    assert stored(tmp_path, credited(a_step())) == [[[1.0] * 4], [None], several, [], [[5.0] * 4]]
    assert stored(tmp_path, []) == [[None], [None], [None] * 4, [], [None]]
    assert stored(tmp_path, credited(a_step())[4:]) == [[None], [None], [None] * 4, [], [[5.0] * 4]]


@pytest.mark.parametrize("change", [{"rollout_id": "c/0"}, {"token_ids": [1, 2, 9]}, {"loss_mask": [0, 0, 0]}])
def test_sample_without_a_trajectory_is_an_internal_error(change: dict[str, object], tmp_path: Path) -> None:
    samples = credited(a_step())
    samples[1] = replace(samples[1], **change)
    with pytest.raises(ValueError, match="belongs to no trajectory"):
        stored(tmp_path, samples)
    assert list(tmp_path.iterdir()) == []
