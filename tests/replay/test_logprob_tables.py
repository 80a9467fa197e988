"""Notes in the tables about unreliable estimates."""

from __future__ import annotations

import math
from functools import cache

import pytest

from agentrl.replay.logprobs.mode import reward_table, rewards_by_step
from agentrl.replay.logprobs.off_policy import Episode, OffPolicy, off_policy


@cache
def near() -> OffPolicy:
    return off_policy([Episode(task, 0.1 * math.sin(task), float(task % 2)) for task in range(40)])


@cache
def far() -> OffPolicy:
    return off_policy([Episode(task, -3.0 * (task + 1), float(task % 2)) for task in range(40)])


@pytest.mark.slow
def test_reliable_estimates_have_no_note():
    table = reward_table(near())
    assert [row[0] for row in table.rows] == [
        "as sampled",
        "checkpoint, ordinary",
        "checkpoint, weighted",
        "checkpoint, per decision",
        "mean ratio",
    ]
    assert "unreliable" not in table.note
    assert "not near 1" not in table.note
    assert table.note.endswith("in some rollouts the turn rewards do not sum to the score.")
    by_turn = off_policy([Episode(task, 0.1 * math.sin(task), 1.0, [(0.0, 1.0)]) for task in range(40)])
    assert reward_table(by_turn).note.endswith("The mean ratio should be 1.")


@pytest.mark.slow
def test_unreliable_estimates_have_a_note():
    note = reward_table(far()).note
    assert note.startswith("1.105 of 40 rollouts are effective")
    assert "not near 1" in note
    assert "the estimates are unreliable" in note
    beyond = off_policy([Episode(task, 300.0 * task, 1.0) for task in range(4)])
    assert "overflows a float" in reward_table(beyond).note


def test_steps_have_a_line_each():
    (table,) = rewards_by_step({"1": near(), "2": far(), "all": near()})
    assert [row[-1] for row in table.rows] == [f"{near().num_effective:.4g}", "too few", f"{near().num_effective:.4g}"]
    assert rewards_by_step({"1": near()}) == []
