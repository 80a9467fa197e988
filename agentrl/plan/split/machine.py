"""The devices of a simulated run: engine replicas, and a learner that may share their devices."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from agentrl.plan.split.replica import EngineSpeed, Replica


class Span(NamedTuple):
    """A period of work in a timeline, in seconds from the start of the run."""

    lane: str
    what: str
    start_s: float
    end_s: float


class Machine:
    """Engine replicas and a learner.

    Args:
        contention: factors by which trainer and engine are slower while both compute at the same time; 1 on separate
            devices.
        exclusive: whether the replicas stop while the learner works, because they use the same GPUs.
    """

    def __init__(
        self,
        speed: EngineSpeed,
        num_replicas: int,
        max_running: int,
        max_kv_tokens: float,
        contention: tuple[float, float] = (1.0, 1.0),
        exclusive: bool = False,
    ) -> None:
        (self._slow_trainer, self._slow_engine), self._exclusive = contention, exclusive
        self._learning = False
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.replicas = [
            Replica(speed, max_running, max_kv_tokens, self._slowdown, self._changed.set) for _ in range(num_replicas)
        ]
        self.spans: list[Span] = []
        self.learn_s = 0.0

    def least_loaded(self) -> Replica:
        """Return the replica with the fewest requests."""
        return min(self.replicas, key=lambda replica: replica.load)

    async def learn(self, seconds: float, what: str = "learn") -> None:
        """Do work of the learner that takes `seconds` without contention."""
        started = self._loop.time()
        self._set_learning(True)
        left = seconds
        while left > 1e-9:
            left -= await self._work(left)
        self._set_learning(False)
        self.learn_s += self._loop.time() - started
        self.spans.append(Span("trainer", what, started, self._loop.time()))

    async def publish(self, seconds: float, version: int, recompute: bool) -> None:
        """Stop the replicas for `seconds`, then sample with the weights of `version`."""
        started = self._loop.time()
        for replica in self.replicas:
            replica.pause(True)
        await asyncio.sleep(seconds)
        for replica in self.replicas:
            replica.load_weights(version, recompute)
            replica.pause(False)
        self.spans.append(Span("trainer", "publish", started, self._loop.time()))

    def _set_learning(self, learning: bool) -> None:
        self._learning = learning
        for replica in self.replicas:
            if self._exclusive:
                replica.pause(learning)
            replica.update()

    async def _work(self, left: float) -> float:
        """Work until `left` is done or the contention changes; return the work done, in seconds without contention."""
        started = self._loop.time()
        factor = self._slow_trainer if any(each.busy for each in self.replicas) else 1.0
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), left * factor)
        except TimeoutError:
            return left
        return (self._loop.time() - started) / factor

    def _slowdown(self) -> float:
        return self._slow_engine if self._learning else 1.0
