"""Where an online reward model stands in a run: in the reward that is paid, and behind the source of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from pydantic import JsonValue

from agentrl.attempt import Group
from agentrl.data.order import Draw
from agentrl.rewards.base import Reward, close_reward
from agentrl.tools.base import InfraError
from agentrl.trainer.parts import Source


@dataclass(frozen=True, slots=True)
class Paid:
    """The reward, whose score is the rule's outcome while the model warms up."""

    reward: Reward
    outcome: str
    warming_up: Callable[[], bool]

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `Reward`."""
        rewards = await self.reward(data_source, solution_str, ground_truth, extra_info)
        if not self.warming_up():
            return rewards
        if self.outcome not in rewards:
            row = extra_info.get("index", "unknown")
            raise InfraError(f"row {row} of '{data_source}': component '{self.outcome}' has no verdict")
        return {**rewards, "score": rewards[self.outcome]}

    def close(self) -> None:
        """End what it runs on."""
        close_reward(self.reward)


class Watched:
    """A source that shows its groups to someone else, too."""

    def __init__(self, source: Source, watch: Callable[[Sequence[Group]], None]) -> None:
        self._source, self._watch = source, watch

    @property
    def position(self) -> int:
        """Of the source."""
        return self._source.position

    @position.setter
    def position(self, position: int) -> None:
        self._source.position = position

    @property
    def pending(self) -> Sequence[Draw]:
        """Of the source."""
        return self._source.pending

    @pending.setter
    def pending(self, pending: Sequence[Draw]) -> None:
        self._source.pending = pending

    def feeding(self) -> AbstractAsyncContextManager[None]:
        """Of the source."""
        return self._source.feeding()

    async def take(self, policy_version: int) -> list[Group]:
        """See `Source.take`."""
        groups = await self._source.take(policy_version)
        self._watch(groups)
        return groups
