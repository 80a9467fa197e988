"""Helpers for tests of environment servers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from tool_builders import task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools.loading import load_tools
from agentrl.tools.toolbox import Toolbox, ToolResult
from agentrl.types.task import Task


@dataclass
class Played:
    """What a rollout on a server did."""

    text: str
    results: list[ToolResult]
    rewards: dict[str, float]
    ended: bool

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Outcome and text of each call."""
        return [(str(result.outcome), result.text) for result in self.results]


def target(folder, **keys) -> str:
    """The value of `rollout.multi_turn.environment` for a YAML file with these keys."""
    (folder / "world.yaml").write_text(json.dumps(keys))
    return str(folder / "world.yaml")


def loaded(environment: str, timeout_s: float = 60.0) -> Toolbox:
    config = MultiTurnConfig(environment=environment, tool_timeout_s=timeout_s)
    return Toolbox(load_tools(config), config)


async def rollout(box: Toolbox, *calls, row: Task | None = None, said: str | None = None) -> Played:
    """Run the calls in one session. `said` is the last answer of the model, after the calls."""
    async with box.session(row or task(uid="u")) as session:
        text = await session.start()
        results = [await session.call(each) for each in calls]
        if said is not None:
            session.data.messages = [*session.data.messages, {"role": "assistant", "content": said}]
        await session.finish()
        return Played(text, results, session.rewards, session.ended)


def play(environment: str, *calls, timeout_s: float = 60.0, **options) -> Played:
    """Load the server, run one rollout and close everything."""

    async def main() -> Played:
        box = loaded(environment, timeout_s)
        try:
            return await rollout(box, *calls, **options)
        finally:
            await box.close()

    return asyncio.run(main())
