"""Test helper: rollouts of a harness with scripted answers of the model."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness_builders import PROGRAM
from loop_builders import ListEngine, call, exact, runner

from agentrl.config.run import RunConfig
from agentrl.engines.base import SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.tools.binding_any import AnyTool
from agentrl.types.rollout import Rollout
from agentrl.types.task import Task

TASK = Task([{"role": "user", "content": "What is 2 + 3?"}], ground_truth="5", data_source="sums", uid="t0")
LOOP = [call("add", a=2, b=3), "5"]
"""The model's turns: a call, then the answer."""


class Rolls:
    """Runs rollouts with the settings of one file.

    Args:
        tools: makes the tools of a call.
    """

    def __init__(self, folder: Path, tools: Callable[[], Sequence[AnyTool]] = tuple) -> None:
        self.file, self.tools = folder / "tested.yaml", tools
        self.seen: list[dict[str, object]] = []

    def __call__(
        self,
        *replies: str | None,
        mode: str = "tools",
        task: Task = TASK,
        count: int = 1,
        data: dict[str, object] | None = None,
        multi_turn: dict[str, object] | None = None,
        engine: ScriptedEngine | None = None,
        **settings: object,
    ) -> list[Rollout]:
        own = {} if "function" in settings else {"command": [sys.executable, str(PROGRAM), mode]}
        self.file.write_text(json.dumps({**own, **settings}))
        self.engine = engine or ListEngine(*(replies or LOOP))
        config = RunConfig.model_validate(
            {
                "model": {"path": "none"},
                "data": {"max_response_length": 500, **(data or {})},
                "rollout": {"harness": str(self.file), "multi_turn": multi_turn or {}},
            }
        )
        return asyncio.run(self._run(config, task, count))

    async def _run(self, config: RunConfig, task: Task, count: int) -> list[Rollout]:
        made = runner(self.engine, config, tools=self.tools(), reward=self._reward)
        try:
            return list(await asyncio.gather(*(made.run(task, SamplingParams(), seed=seed) for seed in range(count))))
        finally:
            await made.close()
            await made._toolbox.close()

    async def _reward(self, data_source, solution_str, ground_truth, extra_info):
        self.seen.append(extra_info)
        return await exact(data_source, solution_str, ground_truth, extra_info)


def check_tokens(rollout: Rollout, engine: ListEngine) -> None:
    """Each request to the engine has the tokens before a model segment, and each model segment has its request."""
    contexts = []
    for trajectory in rollout.trajectories:
        before: list[int] = []
        for segment in trajectory.segments:
            if segment.author == "model":
                contexts.append(list(before))
            before += segment.token_ids
    assert sorted(contexts) == sorted(list(request.token_ids) for request in engine.requests)
