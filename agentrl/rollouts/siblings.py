"""What only the siblings of a rollout can say of it: whether what the model wrote is of another length than theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentrl.attempt import GUARD, Rollout
from agentrl.config.reward_models import GuardsConfig
from agentrl.rewards.guards import unlike_siblings

LENGTH = f"{GUARD}length"


class Siblings:
    """Waits for the last of `num` rollouts, and tells of all of them that have a score whether their length stands out.

    What failed outside the policy is left out. The guard only watches: a penalty would depend on who the others are.
    """

    def __init__(self, num: int, config: GuardsConfig) -> None:
        self._num, self._ratio = num, config.length_ratio
        self._watches = "length" in config.names
        self._ended: list[Rollout] = []

    async def await_one(self, attempt: Callable[[], Awaitable[Rollout]]) -> Rollout:
        """The rollout of `attempt`."""
        rollout = await attempt()
        self._ended.append(rollout)
        if self._watches and len(self._ended) == self._num:
            self._tell([each for each in self._ended if not each.failed and "score" in each.rewards])
        return rollout

    def _tell(self, scored: list[Rollout]) -> None:
        lengths = [sum(each.num_trained_tokens for each in rollout.trajectories) for rollout in scored]
        for rollout, unlike in zip(scored, unlike_siblings(lengths, self._ratio), strict=True):
            rollout.rewards[LENGTH] = float(unlike)
