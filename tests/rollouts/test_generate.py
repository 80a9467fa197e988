"""What one rollout asks of the engine."""

from __future__ import annotations

import asyncio

from agentrl.engines.base import Completion, GenerateRequest, SamplingParams
from agentrl.engines.scripted import ScriptedEngine
from agentrl.rollouts.generate import RolloutGenerate


class Listening(ScriptedEngine):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__([[1, 2]])
        self.asked: list[GenerateRequest] = []

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked.append(request)
        return await super().generate(request)


def test_older_rollouts_go_first_and_a_rollout_keeps_its_place() -> None:
    engine = Listening()
    older, younger = RolloutGenerate(engine, seed=1), RolloutGenerate(engine, seed=1)

    async def use() -> None:
        for generate in (younger, older, younger):
            await generate([7], SamplingParams())

    asyncio.run(use())
    first, second, third = engine.asked
    assert second.priority > first.priority == third.priority
    assert second.session != first.session == third.session
    assert (first.token_ids, first.sampling) == (second.token_ids, second.sampling)
