"""Reward manager `batch`: calls a function with lists of the rollouts that wait for a score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import RewardError
from agentrl.rewards.functions.calls import SEVERAL, ScoreFunction, errors_with_place
from agentrl.rewards.functions.function import OffLoop


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A rollout that waits for its score."""

    data_source: str
    solution_str: str
    ground_truth: JsonValue
    extra_info: dict[str, object]
    returned: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class BatchReward:
    """Calls `function(data_sources=, solution_strs=, ground_truths=, extra_infos=, **kwargs)` for several rollouts.

    Only one call runs at a time, so the function need not support parallel calls; but a call that timed out may still
    run during the next call. During a call, other rollouts continue; rollouts that finish wait for the next call. A
    call starts when `reward.batch_size` rollouts wait, or after `reward.batch_wait_s` seconds. The function returns one
    number, or one dict with a `score`, per rollout.

    Raises:
        ConfigError: the function requires an argument that is not passed, or does not accept one of `kwargs`.
    """

    def __init__(
        self, function: Callable[..., object], kwargs: Mapping[str, JsonValue], config: RewardConfig, name: str
    ) -> None:
        self._score = ScoreFunction(function, kwargs, name, SEVERAL)
        self._call = OffLoop(function, config.timeout_s, name)
        self._timeout_s, self._size, self._wait_s = config.timeout_s, config.batch_size, config.batch_wait_s
        self._waiting: list[_Waiting] = []
        self._full = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            RewardError: the function raised, or returned no finite number for this row.
            InfraError: the call timed out, or the function raised `InfraError`.
        """
        mine = _Waiting(data_source, solution_str, ground_truth, dict(extra_info))
        self._waiting.append(mine)
        if len(self._waiting) >= self._size:
            self._full.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        with errors_with_place(self._score.where(data_source, extra_info), self._timeout_s, self._score.place):
            return self._score.read(await mine.returned)

    def close(self) -> None:
        """Stop the threads without waiting for a call that hangs."""
        self._call.close()

    async def _serve(self) -> None:
        """Score batch after batch until no rollout waits."""
        try:
            while self._waiting:
                await self._gather()
                batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
                await self._answer([each for each in batch if not each.returned.done()])  # skip cancelled rollouts
        finally:
            self._serving = None

    async def _gather(self) -> None:
        """Wait until a batch is full, but at most `batch_wait_s` seconds."""
        if len(self._waiting) >= self._size:
            return
        self._full.clear()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._full.wait()
        except TimeoutError:
            pass

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        try:
            answers = await self._answers(batch)
        except Exception as error:  # `__call__` raises this error for each rollout and adds the row
            for each in batch:
                if not each.returned.done():
                    each.returned.set_exception(error)
            return
        for each, answer in zip(batch, answers, strict=True):
            if not each.returned.done():
                each.returned.set_result(answer)

    async def _answers(self, batch: Sequence[_Waiting]) -> list[object]:
        """Return one answer per rollout.

        Raises:
            RewardError: the function did not return one answer per rollout.
        """
        columns = ("data_source", "solution_str", "ground_truth", "extra_info")
        lists = ([getattr(each, column) for each in batch] for column in columns)
        returned = await self._call(**self._score.arguments(*lists))
        try:
            answers = [] if isinstance(returned, (str, Mapping)) else list(cast("Iterable[object]", returned))
        except TypeError:  # a number, or an array without dimensions
            answers = []
        if len(answers) != len(batch):
            got = f"{len(answers)}: {returned!r:.100}" if answers else f"{returned!r:.100}"
            raise RewardError(f"expected a list of {len(batch)} scores, one per rollout, got {got}")
        return answers
