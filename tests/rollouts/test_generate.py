"""The engine requests of one rollout."""

from __future__ import annotations

import asyncio

from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.generate_session import RolloutGenerate


class Listening(ScriptedEngine):
    """Stores the requests."""

    def __init__(self) -> None:
        super().__init__([[1, 2]])
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.append(request)
        return await super().generate(request)


def test_a_rollout_keeps_its_session_and_its_priority() -> None:
    engine = Listening()
    first_of, other = RolloutGenerate(engine, seed=1, priority=-3), RolloutGenerate(engine, seed=1)

    async def use() -> None:
        for generate in (first_of, other, first_of):
            await generate([7], SamplingParams())

    asyncio.run(use())
    first, second, third = engine.asked
    assert [each.priority for each in engine.asked] == [-3, 0, -3]
    assert second.session != first.session == third.session
    assert (first.token_ids, first.sampling) == (second.token_ids, second.sampling)
