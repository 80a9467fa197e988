"""Run GRPO once on the calculator task, with a tool whose latency is heavy-tailed; print the times as one JSON line.

python benchmarks/tail/slow_run.py [--no-latency] [key=value ...]

benchmarks/long_tail.py and benchmarks/plan_time.py start this script.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch
from slow_task import TAIL, SlowCalculator

from agentrl.cli.compose import compose_config
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.builders.run import Run, open_run
from agentrl.trainer.loop import train
from agentrl.trainer.protocols import AfterStep, Parts

P = ParamSpec("P")
R = TypeVar("R")


class Watch:
    """Measures seconds by name: the time during which at least one call with this name runs."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    @contextmanager
    def of(self, name: str):
        if not self._running[name]:
            self.seconds[name] -= time.perf_counter()
        self._running[name] += 1
        try:
            yield
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                self.seconds[name] += time.perf_counter()

    def over(self, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        async def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.of(name):
                return await part(*args, **kwargs)

        return watched


def watched(run: Run, watch: Watch, ends: list[float]) -> Parts:
    """Return the parts of the run with timers; the end time of each step is appended to `ends`."""
    parts = run.parts
    run.rollouts.engine.generate = watch.over("engine", run.rollouts.engine.generate)
    parts.source.take = watch.over("take", parts.source.take)
    learner, publish = watch.over("learn", parts.learner), watch.over("publish", parts.publish)
    return replace(parts, learner=learner, publish=publish, after_step=Ends(parts.after_step, ends))


class Ends:
    """Wraps the loop's `after_step` and records the end time of each step."""

    def __init__(self, after_step: AfterStep, ends: list[float]) -> None:
        self._after_step, self._ends = after_step, ends
        self.finished = after_step.finished

    async def begin(self) -> int:
        step = await self._after_step.begin()
        self._ends.append(time.perf_counter())
        return step

    async def __call__(self, *step: object) -> None:
        await self._after_step(*step)
        self._ends.append(time.perf_counter())


SETTINGS = (
    "rollout.multi_turn.function_tool_path=null",
    "rollout.agent.default_agent_loop=slow_task:ThinkingAgent",
    "rollout.deterministic=false",
    "data.val_files=[]",  # rollouts would continue during validation, so checkpoints are evaluated afterwards
    "trainer.stop_when=null",
    "trainer.test_freq=0",
    "trainer.logger=[jsonl]",
)


async def run(overrides: Sequence[str]) -> dict[str, object]:
    config = compose_config(["+experiment=calculator", *SETTINGS, *overrides])
    config.trainer.run_dir.mkdir(parents=True, exist_ok=True)
    TAIL.group_size = config.rollout.n
    watch, ends = Watch(), list[float]()
    async with open_run(config, UserObjects(tools=[SlowCalculator()])) as opened:
        await train(watched(opened, watch, ends))
    return {"ends": [end - ends[0] for end in ends], **watch.seconds}


if __name__ == "__main__":
    torch.set_num_threads(1)
    TAIL.late = "--no-latency" not in sys.argv
    print(json.dumps(asyncio.run(run([each for each in sys.argv[1:] if "=" in each]))))
