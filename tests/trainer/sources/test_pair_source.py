"""Saved pairs as groups of two, and their trained tokens."""

from __future__ import annotations

import asyncio

from agentrl.data.dialogues import Dialogue
from agentrl.data.order import TaskOrder
from agentrl.data.pairs import Pair
from agentrl.trainer.sources.pairs import PairSource
from agentrl.types.trajectory import Author, Segment, Trajectory


def message(role, text):
    return {"role": role, "content": text}


SHARED = [message("user", "1"), message("assistant", "2"), message("user", "3")]
PAIR = Pair(
    Dialogue([*SHARED, message("assistant", "4"), message("user", "5"), message("assistant", "6")], None),
    Dialogue([*SHARED, message("assistant", "7")], None),
    num_shared=3,
)


def render(dialogue, row):
    """The content of every message is its one token id."""
    authors = {"user": Author.USER, "assistant": Author.DEMONSTRATION}
    segments = [Segment(authors[each["role"]], [int(each["content"]) + 10 * row]) for each in dialogue.messages]
    return Trajectory(segments, dialogue.messages)


def take(source, times):
    async def steps():
        async with source.feeding():
            return [group for step in range(times) for group in await source.take(step)]

    return asyncio.run(steps())


def test_pair_is_a_group_of_two_trained_after_the_prompt():
    (group,) = take(PairSource([PAIR].__getitem__, render, TaskOrder(1, 0, shuffle=False), 1), 1)
    chosen, rejected = group.rollouts
    assert (chosen.reward, rejected.reward) == (1.0, 0.0)
    assert (chosen.valid, rejected.valid) == (True, True)
    assert list(chosen.trajectories[0].token_ids) == [1, 2, 3, 4, 5, 6]
    assert list(chosen.trajectories[0].loss_mask) == [0, 0, 0, 1, 0, 1]
    assert list(rejected.trajectories[0].token_ids) == [1, 2, 3, 7]
    assert list(rejected.trajectories[0].loss_mask) == [0, 0, 0, 1]
    assert group.task.messages == SHARED


def test_pairs_follow_row_order_with_unique_uids():
    source = PairSource([PAIR, PAIR, PAIR].__getitem__, render, TaskOrder(3, 0, shuffle=False), 2)
    groups = take(source, 2)
    assert [group.task.index for group in groups] == [0, 1, 2, 0]
    assert len({group.uid for group in groups}) == 4
    assert [group.rollouts[0].trajectories[0].token_ids[0] for group in groups] == [1, 11, 21, 1]
    assert source.position == 4
