"""Engine and trainer on one GPU: the engine's memory is released while the policy is updated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from agentrl.capabilities import engine_spec
from agentrl.config import RunConfig
from agentrl.engines.base import Colocated, Engine
from agentrl.models.adapter_folder import find_adapter
from agentrl.types.sample import Sample


class SharedGpu:
    """Switches one GPU between an engine and a trainer.

    Args:
        all_weights: whether every publication sends all weights. If not, the engine keeps its weights in memory,
            because released weights are lost, and a publication would restore only some of them.

    Raises:
        AgentRLError: the engine cannot release its memory.
    """

    def __init__(self, engine: Colocated, *, all_weights: bool) -> None:
        self._engine, self._all_weights = engine, all_weights
        self._released = False
        engine.check_memory_saver()

    async def hand_over(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Release the engine's memory before an update. The engine is paused until weights are published.

        A step hook in the phase `before_update`; see `agentrl.trainer.learner.StepHooks`.
        """
        # not the mode `retract`: its requests stay unfinished, and releasing memory then crashes the server
        await self._engine.pause("drain")
        await self._engine.release_memory(weights=self._all_weights)
        self._released = True
        return {}

    async def take_back(self, version: int) -> None:
        """Restore the engine's memory; publishing the weights then resumes the engine.

        A step hook in the phase `before_publish`; see `agentrl.trainer.learner.StepHooks`.
        """
        if self._released:
            await self._engine.resume_memory(weights=self._all_weights)
            self._released = False


def shared_gpu(config: RunConfig, engine: Engine) -> SharedGpu | None:
    """Return the switch for `rollout.sglang.colocate`; None if `colocate` is off.

    Raises:
        AgentRLError: the engine cannot release its memory.
    """
    if not engine_spec(config.rollout.engine).colocate or not config.rollout.sglang.colocate:
        return None
    model = config.model
    adapter = model.lora_rank or model.lora_adapter_path or find_adapter(model.path)
    return SharedGpu(cast(Colocated, engine), all_weights=not (adapter or config.actor.freeze_modules))
