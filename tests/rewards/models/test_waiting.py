"""Requests that wait at the same time are scored in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentrl.rewards.models.batcher import Batcher


class Counting:
    """Returns the sum of each conversation, once the test allows it."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.called, self.let = asyncio.Event(), asyncio.Event()

    async def __call__(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        self.calls.append([len(each) for each in conversations])
        self.called.set()
        await self.let.wait()
        return [float(sum(each)) for each in conversations]


def ask(conversations: list[list[int]], **options: int) -> tuple[list[float], list[list[int]]]:
    """(scores, lengths of each call). All conversations but the first arrive while the first is scored."""

    async def work() -> tuple[list[float], list[list[int]]]:
        count = Counting()
        together = Batcher(count, **{"max_tokens": 100, **options})
        tasks = [asyncio.create_task(together(conversations[0]))]
        await count.called.wait()
        tasks += [asyncio.create_task(together(each)) for each in conversations[1:]]
        await asyncio.sleep(0)
        count.let.set()
        return await asyncio.gather(*tasks), count.calls

    return asyncio.run(work())


def test_waiting_requests_are_batched():
    assert ask([[1], [2, 2], [3]]) == ([1.0, 4.0, 3.0], [[1], [2, 1]])


def test_padding_counts_towards_the_token_limit():
    assert ask([[1], [1], [2, 2, 2], [1]], max_tokens=6)[1] == [[1], [1, 3], [1]]


def test_long_sample_gets_its_own_micro_batch():
    assert ask([[1], [1] * 9, [2]], max_tokens=5)[1] == [[1], [9], [1]]


def test_max_size_of_one_scores_one_by_one():
    assert ask([[1], [2], [3]], max_size=1)[1] == [[1], [1], [1]]


def test_a_failure_reaches_every_caller_and_the_batcher_continues():
    async def work() -> list[object]:
        async def fail(conversations: Sequence[Sequence[int]]) -> list[float]:
            if len(conversations[0]) > 1:
                raise RuntimeError("no")
            return [1.0 for _ in conversations]

        together = Batcher(fail, 100)
        first = await asyncio.gather(together([1, 2]), together([1, 2]), return_exceptions=True)
        return [*map(str, first), await together([1])]

    assert asyncio.run(work()) == ["no", "no", 1.0]


def test_cancelled_requests_are_not_scored():
    async def work() -> list[list[int]]:
        count = Counting()
        together = Batcher(count, 100)
        first = asyncio.create_task(together([1]))
        await count.called.wait()
        second, third = asyncio.create_task(together([2, 2])), asyncio.create_task(together([3, 3, 3]))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        count.let.set()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second
        return count.calls

    assert asyncio.run(work()) == [[1], [3]]
