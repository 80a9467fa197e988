"""Notes in the tables about unreliable estimates."""

from __future__ import annotations

import math

from agentrl.replay.logprobs.mode import reward_table, rewards_by_step
from agentrl.replay.logprobs.off_policy import Episode, off_policy

NEAR = off_policy([Episode(task, 0.1 * math.sin(task), float(task % 2)) for task in range(40)])
FAR = off_policy([Episode(task, -3.0 * (task + 1), float(task % 2)) for task in range(40)])
BEYOND = off_policy([Episode(task, 300.0 * task, 1.0) for task in range(4)])


def test_estimates_that_can_be_trusted_are_only_told():
    table = reward_table(NEAR)
    assert [row[0] for row in table.rows] == [
        "as sampled",
        "checkpoint, ordinary",
        "checkpoint, weighted",
        "checkpoint, per decision",
        "mean ratio",
    ]
    assert "mean nothing" not in table.note
    assert "not near 1" not in table.note
    assert table.note.endswith("in some rollouts the turn rewards do not sum to the score.")
    by_turn = off_policy([Episode(task, 0.1 * math.sin(task), 1.0, [(0.0, 1.0)]) for task in range(40)])
    assert reward_table(by_turn).note.endswith("The mean ratio should be 1.")


def test_estimates_that_mean_nothing_are_said_to():
    note = reward_table(FAR).note
    assert note.startswith("1.105 of 40 rollouts are effective")
    assert "not near 1" in note
    assert "the estimates are unreliable" in note
    assert "overflows a float" in reward_table(BEYOND).note


def test_steps_have_a_line_each():
    (table,) = rewards_by_step({"1": NEAR, "2": FAR, "all": NEAR})
    assert [row[-1] for row in table.rows] == [f"{NEAR.num_effective:.4g}", "too few", f"{NEAR.num_effective:.4g}"]
    assert rewards_by_step({"1": NEAR}) == []
