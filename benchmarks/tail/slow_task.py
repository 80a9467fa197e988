"""The calculator task with a long tail: a slow tool, and rollouts that sample extra tokens before they start."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from agentrl.agent_loops.tool import ToolAgent
from agentrl.tools.base import BaseTool, ToolResponse
from agentrl.tools.function import as_tool
from agentrl.utils.seeds import derive_seed

sys.path.append(str(Path(__file__).parents[2] / "examples/calculator"))
from tool import calculator

ALPHA = 1.2
MEDIAN_S, MOST_S = 0.05, 5.0
MEDIAN_TOKENS, MOST_TOKENS = 4, 128


def pareto(rng: random.Random, median: float, most: float) -> float:
    """Heavy-tailed: P(x > t) = (least / t) ** ALPHA with least = median / 2 ** (1 / ALPHA); cut off at `most`."""
    return min(most, median * 2 ** (-1 / ALPHA) * rng.paretovariate(ALPHA))


class Tail:
    """How late each tool answers and how long each rollout thinks: a function of (task, rollout, turn) alone.

    A rollout's number is its place among its siblings; those of a task that is begun again meet what they met before.
    """

    def __init__(self) -> None:
        self.group_size = 1
        self.late = True
        self._begun: Counter[int] = Counter()
        self._turns: dict[str, Iterator[random.Random]] = {}

    def begin(self, row: int, request_id: str) -> random.Random:
        """A rollout begins: where its own numbers come from."""
        number = self._begun[row] % self.group_size
        self._begun[row] += 1
        self._turns[request_id] = (random.Random(derive_seed("tail", row, number, turn)) for turn in count())
        return self.turn(request_id)

    def turn(self, request_id: str) -> random.Random:
        """Its next turn begins."""
        return next(self._turns[request_id])

    def end(self, request_id: str) -> None:
        del self._turns[request_id]


TAIL = Tail()


class ThinkingAgent(ToolAgent):
    """The tool agent, which samples some text before its first turn and throws it away.

    The toy says about the same number of tokens in every rollout, and understands no longer ones: so its engine gets a
    heavy-tailed number of tokens to sample for each, while what is learnt, and from how many tokens, stays as it is.
    """

    async def run(self, task, generate, tools, interaction, sampling):
        rng = TAIL.begin(task.index, tools.data.request_id)
        try:
            if not task.uid.startswith("val-"):
                await self._think(task, generate, tools, sampling, int(pareto(rng, MEDIAN_TOKENS, MOST_TOKENS)))
            return await super().run(task, generate, tools, interaction, sampling)
        finally:
            TAIL.end(tools.data.request_id)

    async def _think(self, task, generate, tools, sampling, num_tokens: int) -> None:
        prompt = self.prompt(task, tools).trajectory.token_ids
        token_ids = [*prompt, prompt[-1]]  # not the context of a turn: what is thought is never taken for one
        end = len(token_ids) + num_tokens
        while len(token_ids) < end:  # it goes on where it says that its turn is over
            left = replace(sampling, max_new_tokens=end - len(token_ids))
            token_ids += (await generate(token_ids, left, trajectory=1)).token_ids


class SlowCalculator(BaseTool):
    """The example's calculator, which takes its time in training; in validation it answers at once."""

    def __init__(self) -> None:
        super().__init__({}, as_tool(calculator).schema)

    async def execute(self, instance_id, parameters, agent_data):
        if TAIL.late and not agent_data.task.uid.startswith("val-"):
            await asyncio.sleep(pareto(TAIL.turn(agent_data.request_id), MEDIAN_S, MOST_S))
        return ToolResponse(calculator(**parameters)), 0.0, {}
