"""Engine and trainer on one GPU: the engine's memory is released while the policy is updated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl.config import RunConfig
from agentrl.engines.base import Engine
from agentrl.engines.sglang.engine import SglangEngine
from agentrl.engines.sglang.memory import BOTH, Tag, check_memory_saver, release_memory, resume_memory
from agentrl.models.adapter_folder import find_adapter
from agentrl.types.sample import Sample

Learned = TypeVar("Learned")


class SharedGpu:
    """Switches one GPU between the servers of an engine and a learner.

    Args:
        all_weights: whether every publication sends all weights. If not, the servers keep their weights in memory:
            SGLang loses the weights that it releases, and unsent ones would be missing afterwards.

    Raises:
        ServerError: a server cannot release its memory.
    """

    def __init__(self, engine: SglangEngine, *, all_weights: bool) -> None:
        self._engine = engine
        self._tags: Sequence[Tag] = BOTH if all_weights else ("kv_cache",)
        self._released = False
        for replica in engine.replicas:
            check_memory_saver(replica.client, replica.features)

    def learning(
        self, learner: Callable[[Sequence[Sample], int], Awaitable[Learned]]
    ) -> Callable[[Sequence[Sample], int], Awaitable[Learned]]:
        """Wrap `learner`: the servers' memory is released while it runs. They stay paused until `publishing`."""

        async def learn(samples: Sequence[Sample], step: int) -> Learned:
            await self._engine.pause("drain")  # a server crashes if memory is released during requests, even paused
            for replica in self._engine.replicas:
                await release_memory(replica.client, self._tags)
            self._released = True
            return await learner(samples, step)

        return learn

    def publishing(self, publish: Callable[[int], Awaitable[None]]) -> Callable[[int], Awaitable[None]]:
        """Wrap `publish`: the servers get their memory back first. `publish` resumes the engine at the end."""

        async def published(version: int) -> None:
            if self._released:
                for replica in self._engine.replicas:
                    await resume_memory(replica.client, self._tags)
                self._released = False
            await publish(version)

        return published


def shared_gpu(config: RunConfig, engine: Engine) -> SharedGpu | None:
    """Return the switch for `rollout.sglang.colocate`; None if it is off.

    Raises:
        ServerError: a server cannot release its memory.
    """
    if not isinstance(engine, SglangEngine) or not config.rollout.sglang.colocate:
        return None
    model = config.model
    adapter = model.lora_rank or model.lora_adapter_path or find_adapter(model.path)
    return SharedGpu(engine, all_weights=not (adapter or config.actor.freeze_modules))
