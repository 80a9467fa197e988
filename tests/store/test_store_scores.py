"""Log-probabilities and values of a step are saved beside its advantages, exact in float32; older files have none."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from older_files import as_version_2, as_version_3
from stored_runs import group, rollout

from agentrl.algos.credit import samples_of
from agentrl.store import Scores, TrajectoryStore
from agentrl.store.schema import SCORES
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

NUM_TOKENS = 4  # of each rollout of `stored_runs`

scored = st.none() | st.lists(st.floats(width=32, allow_nan=False), min_size=NUM_TOKENS, max_size=NUM_TOKENS)
scores = st.builds(Scores, scored, scored, scored, st.floats(allow_nan=False))


def a_step(count: int) -> list[Group]:
    return [group("a", *(rollout(number) for number in range(count)))]


def with_scores(groups: list[Group], given: list[Scores]) -> list[Sample]:
    return [
        replace(sample, kl_coef=one.kl_coef, **{name: getattr(one, name) for name in SCORES})
        for sample, one in zip(samples_of(groups), given, strict=True)
    ]


@pytest.mark.slow
@given(st.lists(scores, min_size=1, max_size=3))
def test_scores_come_back_as_they_were(given: list[Scores]) -> None:
    groups = a_step(len(given))
    with tempfile.TemporaryDirectory() as folder:
        store = TrajectoryStore(Path(folder))
        store.write(1, groups, with_scores(groups, given))
        read = [stored.scores for stored in store.scan()]
    assert read == [[one] for one in given]


def test_a_rollout_without_a_sample_has_no_scores(tmp_path: Path) -> None:
    groups = a_step(2)
    store = TrajectoryStore(tmp_path)
    store.write(1, groups, with_scores(groups, [Scores(values=[0.5] * NUM_TOKENS)] * 2)[1:])
    assert [stored.scores for stored in store.scan()] == [[Scores()], [Scores(values=[0.5] * NUM_TOKENS)]]
    assert [stored.scores for stored in store.scan(columns=["rewards"])] == [[], []]


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    groups = a_step(1)
    store = TrajectoryStore(tmp_path)
    store.write(1, groups, with_scores(groups, [Scores([1.0] * 4, [2.0] * 4, [3.0] * 4, 4.0)]))
    (stored,) = store.scan(columns=["trajectories.segments", "trajectories.values"])
    assert stored.scores == [Scores(values=[3.0] * 4)]
    assert stored.advantages == [None]


def test_version_2_file_is_read_without_scores(tmp_path: Path) -> None:
    groups = a_step(2)
    store = TrajectoryStore(tmp_path)
    path = store.write(1, groups, with_scores(groups, [Scores(values=[0.5] * NUM_TOKENS)] * 2))
    before = list(store.scan())
    as_version_2(path)
    after = list(store.scan())
    assert [stored.scores for stored in after] == [[Scores()]] * 2
    assert [stored.advantages for stored in after] == [stored.advantages for stored in before]
    (stored, _) = store.scan(columns=["trajectories.segments", "trajectories.values"])
    assert stored.scores == [Scores()]
    assert stored.rollout.trajectories[0].token_ids == groups[0].rollouts[0].trajectories[0].token_ids


def test_version_3_file_is_read_as_version_4(tmp_path: Path) -> None:
    groups = a_step(3)
    groups[0].rollouts[1].rewards = {"score": 1.0, "format": 0.5}
    groups[0].rollouts[2].tool_rewards = {"search": 0.25}
    store = TrajectoryStore(tmp_path)
    path = store.write(1, groups)
    as_version_3(path)
    assert pa.types.is_map(pq.read_schema(path).field("rewards").type)
    assert [stored.rollout.tool_rewards for stored in store.scan()] == [r.tool_rewards for r in groups[0].rollouts]
    rewards = [stored.rollout.rewards for stored in store.scan(columns=["rewards"])]
    assert rewards == [rollout.rewards for rollout in groups[0].rollouts]


def test_scores_are_sealed(tmp_path: Path) -> None:
    groups, seals = a_step(1), []
    store = TrajectoryStore(tmp_path)
    values = np.float32([0.5, 0.25, 0.125, 1.5]).tolist()
    for one in (Scores(), Scores(values=values), Scores(ref_logprobs=values), Scores(kl_coef=0.5)):
        path = store.write(1, groups, with_scores(groups, [one]))
        seals.append(tuple(_seals(path)))
    assert len(set(seals)) == len(seals)


def _seals(path: Path) -> list[int]:
    (row,) = pq.read_table(path, columns=["seals"], partitioning=None).to_pylist()
    return row["seals"]
