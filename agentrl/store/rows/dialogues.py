"""Rollouts as dialogues to imitate: rows that `data.train_files` of supervised fine-tuning takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from agentrl.data.rows import Row
from agentrl.store.rows.wanted import Groups, Wanted, place


def dialogue_rows(groups: Groups, wanted: Wanted) -> Iterator[Row]:
    """A row a trajectory: `messages`, `tools` where there are some, `rewards` by name, and where it came from.

    A conversation that cannot be imitated, such as one with a call whose arguments are no object, is left out.
    """
    for group in groups:
        for stored in wanted.rollouts(group):
            tools = wanted.offered(stored.task)
            given = {"tools": tools} if tools else {}
            for trajectory in stored.rollout.trajectories:
                row = {"messages": trajectory.messages, **given, "rewards": stored.rollout.rewards, **place(stored)}
                if wanted.can_be_imitated(stored, cast(Row, row)):
                    yield cast(Row, row)
