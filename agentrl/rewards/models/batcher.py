"""Batching of concurrent requests to a reward model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

ScoreAll = Callable[[Sequence[Sequence[int]]], Awaitable[Sequence[float]]]
"""Scores conversations, which are given as token ids; returns one number per conversation."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    token_ids: Sequence[int]
    score: asyncio.Future[float] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Calls `score_all` with the requests that arrived during the previous call, up to the limits below.

    Only one call runs at a time.

    Args:
        max_tokens: maximum number of tokens per call, padding included; a conversation with more tokens is sent alone.
        max_size: maximum number of conversations of a call; None: no limit.
    """

    def __init__(self, score_all: ScoreAll, max_tokens: int, max_size: int | None = None) -> None:
        self._score_all, self._max_tokens, self._max_size = score_all, max_tokens, max_size
        self._waiting: list[_Waiting] = []
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, token_ids: Sequence[int]) -> float:
        """Return the score of one conversation. An exception of `score_all` is raised here."""
        mine = _Waiting(token_ids)
        self._waiting.append(mine)
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await mine.score

    async def _serve(self) -> None:
        """Score batch after batch until no request waits."""
        while batch := self._next():
            try:
                scores = await self._score_all([each.token_ids for each in batch])
            except Exception as error:  # raised to every caller of the batch
                for each in batch:
                    if not each.score.done():
                        each.score.set_exception(error)
                continue
            for each, score in zip(batch, scores, strict=True):
                if not each.score.done():  # a cancelled request is done
                    each.score.set_result(score)

    def _next(self) -> list[_Waiting]:
        self._waiting = [each for each in self._waiting if not each.score.done()]
        longest = num = 0
        for each in self._waiting[: self._max_size]:
            longest = max(longest, len(each.token_ids))
            if num and longest * (num + 1) > self._max_tokens:
                break
            num += 1
        batch, self._waiting = self._waiting[:num], self._waiting[num:]
        return batch
