"""Recorded answers with an environment behind them, for calls that were not recorded."""

from __future__ import annotations

import asyncio

from environment_builders import environment
from tool_builders import call, task

from agentrl.config.rollout import MultiTurnConfig
from agentrl.tools.replayed import RecordedToolbox, Recording
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome, ToolCall


class Lamp:
    closed = 0

    def reset(self, seed):
        self.seed, self.switched = seed, 0
        return " It is dark."

    def switch(self, times: int) -> str:
        """Switch."""
        self.switched += times
        return f"{self.switched} of {self.seed}"

    def reward(self):
        return float(self.switched)

    def close(self):
        type(self).closed += 1


def test_live_calls_run_in_the_environment_of_the_rollout():
    recorded = [ToolCall("switch", '{"times": 1}', "recorded", Outcome.OK)]

    async def main():
        live = Toolbox([environment(Lamp)])
        toolbox = RecordedToolbox(live.schemas, MultiTurnConfig(), "live", live)
        toolbox = toolbox.playing(Recording("t", recorded, {}, observation=" It was dark."))
        async with toolbox.session(task(uid="t")) as session:
            session.data.seed = 6
            observation = await session.start()
            results = [await session.call(call("switch", times=times)) for times in (1, 2)]
        await toolbox.close()
        await live.close()
        return observation, [each.text for each in results], session.rewards

    # the recorded call has no effect on the object
    assert asyncio.run(main()) == (" It was dark.", ["recorded", "2 of 6"], {"Lamp": 2.0})
    assert Lamp.closed == 2  # the object that was checked at the start, and the rollout's
