"""Tools and rewards that raise a `BaseException` that is no `Exception`: the call fails, and the run continues."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.chat.base import ParsedCall
from agentrl.errors import RewardError
from agentrl.rewards.functions.function import FunctionReward
from agentrl.tools import tool
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome
from agentrl.types.task import Task


class PanicException(BaseException):
    """Like pyo3's exception for a Rust panic."""


RAISED = {
    "panic": PanicException("index out of bounds"),
    "group": BaseExceptionGroup("several", [PanicException("x"), ValueError("y")]),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit("g"),
    "cancelled": asyncio.CancelledError("c"),
}


@pytest.mark.parametrize("kind", RAISED)
def test_base_exceptions_of_tools_do_not_end_the_run(kind):
    @tool("plain")
    def plain() -> str:
        """Fail."""
        raise RAISED[kind]

    @tool("late")
    async def late() -> str:
        """Fail."""
        await asyncio.sleep(0)
        raise RAISED[kind]

    @tool("fine")
    async def fine() -> str:
        """Work."""
        return "fine"

    async def main():
        box = Toolbox([plain, late, fine])
        async with box.session(Task([])) as session:
            results = [await session.call(ParsedCall(name, "{}")) for name in ("plain", "late", "fine")]
        await box.close()
        return [result.outcome for result in results]

    assert asyncio.run(main()) == [Outcome.TOOL_ERROR, Outcome.TOOL_ERROR, Outcome.OK]


@pytest.mark.parametrize("kind", RAISED)
def test_base_exceptions_of_rewards_are_reward_errors(kind):
    def plain(solution_str):
        raise RAISED[kind]

    async def late(solution_str):
        raise RAISED[kind]

    async def main(function):
        reward = FunctionReward(function, {}, 5.0, "mine")
        try:
            await reward("math", "x", None, {})
        finally:
            reward.close()

    for function in (plain, late):
        with pytest.raises(RewardError, match="reward 'mine'"):
            asyncio.run(main(function))
