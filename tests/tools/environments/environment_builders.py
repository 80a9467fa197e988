"""Helpers for tests of environments."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tool_builders import task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools.environments.bound import Environment
from agentrl.tools.environments.spec import read_environment
from agentrl.tools.result import ToolResult
from agentrl.tools.toolbox import Toolbox, ToolSession


@dataclass
class Played:
    """What a rollout with an environment did."""

    observation: str
    results: list[ToolResult]
    session: ToolSession
    rewards: dict[str, float]


def environment(make, name=None):
    return Environment(read_environment(make, name or make.__name__))


def play(make, *calls, row=None, seed=0, name=None, timeout_s=60.0, parallel=False):
    """Start a rollout, make these calls, collect the reward and close."""

    async def main():
        box = Toolbox([environment(make, name)], MultiTurnConfig(tool_timeout_s=timeout_s))
        try:
            async with box.session(row or task()) as session:
                session.data.seed = seed
                observation = await session.start()
                if parallel:
                    results = await asyncio.gather(*map(session.call, calls))
                else:
                    results = [await session.call(each) for each in calls]
            return Played(observation, list(results), session, session.rewards)
        finally:
            await box.close()

    return asyncio.run(main())
