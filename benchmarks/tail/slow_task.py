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
    """Draw x, at most `most`: P(x > t) = (least / t) ** ALPHA, where least = median / 2 ** (1 / ALPHA)."""
    return min(most, median * 2 ** (-1 / ALPHA) * rng.paretovariate(ALPHA))


class Tail:
    """Random generators for tool latencies and discarded tokens; they depend only on (task, rollout, turn).

    The rollouts of a group are numbered in the order in which they start. If a task is restarted, its rollouts get the
    same values again.
    """

    def __init__(self) -> None:
        self.group_size = 1
        self.late = True
        self._begun: Counter[int] = Counter()
        self._turns: dict[str, Iterator[random.Random]] = {}

    def begin(self, row: int, request_id: str) -> random.Random:
        """Start a rollout and return its first generator."""
        number = self._begun[row] % self.group_size
        self._begun[row] += 1
        self._turns[request_id] = (random.Random(derive_seed("tail", row, number, turn)) for turn in count())
        return self.turn(request_id)

    def turn(self, request_id: str) -> random.Random:
        """Return the generator of the rollout's next turn."""
        return next(self._turns[request_id])

    def end(self, request_id: str) -> None:
        del self._turns[request_id]


TAIL = Tail()


class ThinkingAgent(ToolAgent):
    """Tool agent that samples some tokens before its first turn and discards them.

    All rollouts of this small task have about the same length, and the model cannot produce longer answers. The
    discarded tokens give the engine a heavy-tailed load without changing the trained tokens.
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
        # with the repeated token, these token ids differ from the context of every turn
        token_ids = [*prompt, prompt[-1]]
        end = len(token_ids) + num_tokens
        while len(token_ids) < end:  # continues after an end-of-turn token
            left = replace(sampling, max_new_tokens=end - len(token_ids))
            token_ids += (await generate(token_ids, left, trajectory=1)).token_ids


class SlowCalculator(BaseTool):
    """The example's calculator with a latency in training; in validation it replies immediately."""

    def __init__(self) -> None:
        super().__init__({}, as_tool(calculator).schema)

    async def execute(self, instance_id, parameters, agent_data):
        if TAIL.late and not agent_data.task.uid.startswith("val-"):
            await asyncio.sleep(pareto(TAIL.turn(agent_data.request_id), MEDIAN_S, MOST_S))
        return ToolResponse(calculator(**parameters)), 0.0, {}
