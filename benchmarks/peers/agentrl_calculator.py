"""Run GRPO on the calculator task with agentrl; write one JSON line per step in the format of trl_calculator.py.

python benchmarks/peers/agentrl_calculator.py OUT.jsonl [key=value ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from agentrl.cli.compose import compose_config
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.builders.run import open_run
from agentrl.trainer.loop import train
from agentrl.trainer.protocols import AfterStep
from agentrl.types.rollout import Group

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """Wraps `after_step` and writes a line per step; the time of storing, validation and checkpoints is not counted."""

    def __init__(self, after_step: AfterStep, out: Path) -> None:
        self._after_step, self._out = after_step, out
        self._seconds: dict[str, float] = {}
        self.finished = after_step.finished

    async def begin(self) -> int:
        step = await self._after_step.begin()
        self._start()
        return step

    async def __call__(self, step: int, groups: Sequence[Group], *others: object) -> None:
        step_s, cpu_s = time.perf_counter() - self._start_s, time.process_time() - self._start_cpu_s
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        trajectories = [trajectory for rollout in rollouts for trajectory in rollout.trajectories]
        row = {
            "step": step,
            "step_s": step_s,
            **self._seconds,
            "cpu_s": cpu_s,
            "turns": sum(each.num_turns for each in trajectories) / len(rollouts),
            "response_tokens": sum(each.num_response_tokens for each in trajectories) / len(rollouts),
            "reward": sum(rollout.reward for rollout in rollouts) / len(rollouts),
        }
        with self._out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        await self._after_step(step, groups, *others)
        self._start()

    def timed(self, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        async def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            start_s = time.perf_counter()
            try:
                return await part(*args, **kwargs)
            finally:
                self._seconds[name] = time.perf_counter() - start_s

        return timed

    def _start(self) -> None:
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()


async def run(out: Path, overrides: Sequence[str]) -> None:
    config = compose_config(["+experiment=calculator", *overrides])
    config.trainer.run_dir.mkdir(parents=True, exist_ok=True)
    async with open_run(config, UserObjects()) as opened:
        parts = opened.parts
        clock = Clock(parts.after_step, out)
        parts.source.take = clock.timed("rollout_s", parts.source.take)
        await train(replace(parts, learner=clock.timed("training_s", parts.learner), after_step=clock))


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("")
    asyncio.run(run(out, sys.argv[2:]))
