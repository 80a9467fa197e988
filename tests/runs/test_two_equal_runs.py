"""Two runs with equal configuration and seed are equal bit by bit, though tools and rollouts end in other orders."""

from __future__ import annotations

import pytest
from babbling import babble_is_known, train  # noqa: F401  # the first a fixture
from same_run import differences

from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Outcome
from agentrl.types.trajectory import Author


@pytest.mark.slow
def test_run_is_reproducible_with_any_completion_order(task_folder, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    orders = [train(task_folder, tmp_path, run, seed) for seed, run in enumerate((one, other))]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert differences(one, other) == []
    rollouts = [stored.rollout for stored in TrajectoryStore(one / "trajectories/train").scan()]
    outcomes = [call.outcome for rollout in rollouts for call in rollout.tool_calls]
    assert {Outcome.OK, Outcome.FORMAT_ERROR} <= set(outcomes)
    turns = [(id(rollout), call.turn) for rollout in rollouts for call in rollout.tool_calls]
    assert len(set(turns)) < len(turns)  # several calls in one turn
    authors = {segment.author for rollout in rollouts for t in rollout.trajectories for segment in t.segments}
    assert authors == {Author.PROMPT, Author.MODEL, Author.TOOL, Author.USER}
    assert len({rollout.reward for rollout in rollouts}) > 1
