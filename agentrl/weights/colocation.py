"""Engine and trainer on one GPU: the engine's memory is released while the policy is updated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from agentrl.capabilities import engine_spec
from agentrl.config import RunConfig
from agentrl.engines.base import Colocated, Engine
from agentrl.models.adapter_folder import find_adapter
from agentrl.types.sample import Sample

Learned = TypeVar("Learned")


class SharedGpu:
    """Switches one GPU between an engine and a learner.

    Args:
        all_weights: whether every publication sends all weights. If not, the engine keeps its weights in memory:
            it loses the weights that it releases, and unsent ones would be missing afterwards.

    Raises:
        AgentRLError: the engine cannot release its memory.
    """

    def __init__(self, engine: Colocated, *, all_weights: bool) -> None:
        self._engine, self._all_weights = engine, all_weights
        self._released = False
        engine.check_memory_saver()

    def learning(
        self, learner: Callable[[Sequence[Sample], int], Awaitable[Learned]]
    ) -> Callable[[Sequence[Sample], int], Awaitable[Learned]]:
        """Wrap `learner`: the engine's memory is released while it runs. It stays paused until `publishing`."""

        async def learn(samples: Sequence[Sample], step: int) -> Learned:
            await self._engine.pause("drain")  # a server crashes if memory is released during requests, even paused
            await self._engine.release_memory(weights=self._all_weights)
            self._released = True
            return await learner(samples, step)

        return learn

    def publishing(self, publish: Callable[[int], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
        """Wrap `publish`: the engine gets its memory back first. `publish` resumes the engine at the end."""

        async def published(version: int) -> None:
            if self._released:
                await self._engine.resume_memory(weights=self._all_weights)
                self._released = False
            await publish(version)

        return published


def shared_gpu(config: RunConfig, engine: Engine) -> SharedGpu | None:
    """Return the switch for `rollout.sglang.colocate`; None if it is off.

    Raises:
        AgentRLError: the engine cannot release its memory.
    """
    if not engine_spec(config.rollout.engine).colocate or not config.rollout.sglang.colocate:
        return None
    model = config.model
    adapter = model.lora_rank or model.lora_adapter_path or find_adapter(model.path)
    return SharedGpu(cast(Colocated, engine), all_weights=not (adapter or config.actor.freeze_modules))
