"""A reward model that is trained during the run. A rule-based reward assigns the labels to the new rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import JsonValue
from safetensors.torch import load_file, save_file

from agentrl.algos.credit import valid_rollouts
from agentrl.algos.reward_model.losses import OutcomeLoss
from agentrl.algos.reward_model.samples import reading
from agentrl.backends.base import Backend
from agentrl.config.reward_model import OnlineRewardConfig
from agentrl.data.order import Draw
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.rewards.base import Reward, close_reward, probability
from agentrl.tools.base import InfraError
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.learner import epoch_batches, means
from agentrl.trainer.models.reward_model_metrics import drift, judged
from agentrl.trainer.protocols import Metrics, SaveModel, Source
from agentrl.types.rollout import Group, Rollout
from agentrl.types.sample import Sample

FOLDER, MEMORY = "reward_model", "reward_model_memory.safetensors"
NUM_HELD_OUT, EVERY_HELD_OUT = 64, 8
"""Every `EVERY_HELD_OUT`-th rollout is held out, up to `NUM_HELD_OUT` rollouts, to measure the model's drift."""


class Judged(NamedTuple):
    """A rollout's tokens, as the reward model reads them, and the outcome (label) from the rule-based reward."""

    token_ids: Sequence[int]
    outcome: float


class OnlineRewardModel:
    """The reward model with its replay buffer.

    In each step, the model's scores are compared with the outcomes of the rule-based reward ("the rule"). Then, if an
    update is due, the model is trained.

    Args:
        reward: the policy's reward, a mixture of components.
        component: the name of the reward model's component in `reward`.
        read: converts a rollout to the model's input tokens.
        seed: determines the random order of the rollouts before they are split into mini-batches.
    """

    def __init__(
        self,
        backend: Backend,
        reward: Reward,
        component: str,
        read: Callable[[Rollout], Sequence[int]],
        config: OnlineRewardConfig,
        seed: int,
    ) -> None:
        self.backend, self._reward, self._component = backend, reward, component
        self._read, self._config, self._seed = read, config, seed
        self._num_steps = self._num_seen = 0
        self._fresh: Sequence[Group] = ()
        self._buffer: deque[Judged] = deque(maxlen=config.buffer)
        self._held_out: list[Judged] = []
        self._before: list[float] = []

    @property
    def warming_up(self) -> bool:
        """Whether the policy's reward is still the rule's outcome, without the reward model's score."""
        return self._num_steps < self._config.warmup_steps

    def with_reward(self, user_objects: UserObjects) -> UserObjects:
        """Return `user_objects` with the policy's reward (`WarmupReward`); the run then loads no other reward.

        Raises:
            ConfigError: `user_objects` already has a reward.
        """
        if user_objects.reward is not None:
            raise ConfigError.at(
                "reward.reward_model.online",
                Kind.CONFLICT,
                "reward.reward_model.online learns from a component of reward.components: do not pass a reward",
            )
        return replace(user_objects, reward=WarmupReward(self._reward, self._config.outcome, lambda: self.warming_up))

    def watching(self, source: Source) -> Source:
        """Wrap `source` so that the reward model receives the groups of the source."""
        return ObservedSource(source, self._watch)

    async def __call__(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Evaluate the model on the step's rollouts, train it if an update is due, and return `reward_model/<name>`.

        `accuracy`, `auc`, `ece` and `brier` compare the model's scores of these rollouts with the rule's outcomes.
        """
        rollouts = [
            rollout for group in self._fresh for _, rollout in valid_rollouts(group) if self._outcome_of(rollout)
        ]
        metrics = {"warming_up": float(self.warming_up), **self._against_rule(rollouts)}
        for rollout in rollouts:
            self._remember(Judged(self._read(rollout), rollout.rewards[self._config.outcome]))
        self._fresh, self._num_steps = (), self._num_steps + 1
        if self._num_steps % self._config.every == 0 and self._buffer:
            metrics |= await self._learn(step)
        return {f"{FOLDER}/{name}": value for name, value in metrics.items()}

    def _watch(self, groups: Sequence[Group]) -> None:
        self._fresh = groups

    def _outcome_of(self, rollout: Rollout) -> bool:
        """Return whether the rule assigned the rollout an outcome.

        Raises:
            RewardError: the outcome is not a probability.
        """
        outcome = rollout.rewards.get(self._config.outcome)
        if outcome is not None and not 0 <= outcome <= 1:
            raise RewardError(
                f"reward.reward_model.online.outcome: '{self._config.outcome}' is {outcome:g}, but it must be"
                " a probability from 0 to 1"
            )
        return outcome is not None

    def _against_rule(self, rollouts: Sequence[Rollout]) -> Metrics:
        scored = [rollout for rollout in rollouts if f"{self._component}/logit" in rollout.rewards]
        if not scored:
            return {}
        predicted = [probability(rollout.rewards[f"{self._component}/logit"]) for rollout in scored]
        return judged(predicted, [rollout.rewards[self._config.outcome] for rollout in scored])

    def _remember(self, rollout: Judged) -> None:
        self._num_seen += 1
        if self._num_seen % EVERY_HELD_OUT == 0 and len(self._held_out) < NUM_HELD_OUT:
            self._held_out.append(rollout)
        else:
            self._buffer.append(rollout)

    async def _learn(self, step: int) -> Metrics:
        config, samples = self._config, list(map(_sample, range(len(self._buffer)), self._buffer))
        batches = epoch_batches(samples, config.batch_size, config.epochs, self._seed, step)
        updates = [(await self.backend.train_step(batch, OutcomeLoss("bce"))).metrics for batch in batches]
        of_updates = {name.removeprefix("of/"): value for name, value in means(updates, "of").items()}
        chosen = {name: of_updates[name] for name in _OF_UPDATES if name in of_updates}
        return {**chosen, "updates": float(len(updates)), **await self._moved()}

    async def _moved(self) -> Metrics:
        """Score the held-out rollouts; return the mean, deviation and drift of the scores (see `drift`)."""
        if not self._held_out:
            return {}
        scored = (await self.backend.score(list(map(_sample, range(len(self._held_out)), self._held_out)))).values
        assert scored is not None  # a reward model returns values
        now = [row[-1] for row in scored]
        before, self._before = self._before[: len(now)], now
        known = now[: len(before)]  # newly held-out rollouts have no previous score
        return {**drift(before, known), **drift((), now)}

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """See `Checkpointable.save`."""
        await save_model(self.backend, checkpoint / FOLDER)
        save_file(self._memory(), checkpoint / MEMORY)

    async def load(self, checkpoint: Path) -> None:
        """See `Checkpointable.load`.

        Raises:
            ConfigError: the checkpoint has no reward model, or its reward model is damaged or belongs to another model.
        """
        if not (checkpoint / FOLDER).is_dir() or not (checkpoint / MEMORY).is_file():
            raise ConfigError.at(
                "trainer.default_local_dir",
                Kind.CONFLICT,
                f"cannot resume from '{checkpoint}': it has no reward model, but this run trains one; start a new run"
                " with another trainer.default_local_dir, and that checkpoint as model.path",
            )
        await self.backend.load(checkpoint / FOLDER)
        self._recall(load_file(checkpoint / MEMORY))

    def _memory(self) -> dict[str, torch.Tensor]:
        rollouts = [*self._buffer, *self._held_out]
        return {
            "token_ids": torch.tensor([*chain.from_iterable(each.token_ids for each in rollouts)], dtype=torch.int32),
            "lengths": torch.tensor([len(each.token_ids) for each in rollouts], dtype=torch.int32),
            "outcomes": torch.tensor([each.outcome for each in rollouts], dtype=torch.float64),
            "before": torch.tensor(self._before, dtype=torch.float64),
            "counts": torch.tensor([self._num_steps, self._num_seen, len(self._buffer)]),
        }

    def _recall(self, memory: Mapping[str, torch.Tensor]) -> None:
        rows = torch.split(memory["token_ids"], memory["lengths"].tolist())
        rollouts = [Judged(row.tolist(), label) for row, label in zip(rows, memory["outcomes"].tolist(), strict=True)]
        self._num_steps, self._num_seen, num = memory["counts"].tolist()
        self._buffer.extend(rollouts[:num])
        self._held_out, self._before = rollouts[num:], memory["before"].tolist()


_OF_UPDATES = ("loss", "grad_norm", "lr", "skipped_updates")


def _sample(number: int, rollout: Judged) -> Sample:
    return reading(rollout.token_ids, {len(rollout.token_ids): rollout.outcome}, uid=str(number))


@dataclass(frozen=True, slots=True)
class WarmupReward:
    """The policy's reward. During the warm-up, the score is the rule's outcome."""

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
            raise InfraError(f"row {row} of '{data_source}': component '{self.outcome}' has no value")
        return {**rewards, "score": rewards[self.outcome]}

    def close(self) -> None:
        """Close the wrapped reward."""
        close_reward(self.reward)


class ObservedSource:
    """A source that also passes its groups to a callback."""

    def __init__(self, source: Source, watch: Callable[[Sequence[Group]], None]) -> None:
        self._source, self._watch = source, watch

    @property
    def position(self) -> int:
        """Position of the wrapped source."""
        return self._source.position

    @position.setter
    def position(self, position: int) -> None:
        self._source.position = position

    @property
    def pending(self) -> Sequence[Draw]:
        """Pending tasks of the wrapped source."""
        return self._source.pending

    @pending.setter
    def pending(self, pending: Sequence[Draw]) -> None:
        self._source.pending = pending

    @property
    def live(self) -> bool:
        """See `Source.live`."""
        return self._source.live

    def feeding(self) -> AbstractAsyncContextManager[None]:
        """See `Source.feeding`."""
        return self._source.feeding()

    def metrics(self) -> Metrics:
        """See `Source.metrics`."""
        return self._source.metrics()

    def published(self, version: int) -> None:
        """See `Source.published`."""
        self._source.published(version)

    async def take(self, policy_version: int) -> list[Group]:
        """See `Source.take`."""
        groups = await self._source.take(policy_version)
        self._watch(groups)
        return groups
