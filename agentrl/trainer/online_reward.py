"""A reward model that learns beside the policy, from what a rule says of fresh rollouts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from agentrl.algos.credit import valid_rollouts
from agentrl.algos.reward_samples import reading
from agentrl.algos.reward_training import OutcomeLoss
from agentrl.attempt import Group, Rollout
from agentrl.backends.base import Backend
from agentrl.config.learned_rewards import OnlineRewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.base import Reward, probability
from agentrl.samples import Sample
from agentrl.trainer.learner import deal, means
from agentrl.trainer.online_reward_joints import Paid, Watched
from agentrl.trainer.parts import Learn, Metrics, Source
from agentrl.trainer.reward_model_check import drift, judged
from agentrl.trainer.rollout_parts import Brought

FOLDER, MEMORY = "reward_model", "reward_model_memory.safetensors"
NUM_HELD_OUT, EVERY_HELD_OUT = 64, 8
"""Of the first rollouts one in so many is held out, until there are so many: on them it is seen how the model moves."""


class Judged(NamedTuple):
    """A rollout as the model reads it, and what the rule said of it."""

    token_ids: Sequence[int]
    outcome: float


class OnlineRewardModel:
    """The model and what it remembers. Each step it is held against the rule before it learns from it.

    Args:
        reward: the mixture that the policy is paid by.
        component: the name of the model in that mixture.
        read: a rollout's tokens as the model reads them.
        seed: of the order in which rollouts are dealt into updates.
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
        """Whether the rule's outcome still is the reward."""
        return self._num_steps < self._config.warmup_steps

    def brought(self, brought: Brought) -> Brought:
        """The reward that the policy is paid by, in place of what the configuration would load.

        Raises:
            ConfigError: the caller brings one, too.
        """
        if brought.reward is not None:
            raise ConfigError(
                "reward.reward_model.online learns from a component of reward.components: bring no reward"
            )
        return replace(brought, reward=Paid(self._reward, self._config.outcome, lambda: self.warming_up))

    def watching(self, source: Source) -> Source:
        """`source`, whose groups are learnt from."""
        return Watched(source, self._watch)

    def after(self, learn: Learn) -> Learn:
        """`learn`, and then the reward model from the same step's rollouts."""

        async def learn_both(samples: Sequence[Sample], step: int) -> Metrics:
            return {**await learn(samples, step), **await self(step)}

        return learn_both

    async def __call__(self, step: int) -> Metrics:
        """Look at the fresh rollouts, and learn where it is time to: `reward_model/<name>`.

        `accuracy`, `auc`, `ece`, `brier` hold what the model paid for them against what the rule says of them.
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
        """Whether the rule said something of it.

        Raises:
            RewardError: it said what is no probability.
        """
        outcome = rollout.rewards.get(self._config.outcome)
        if outcome is not None and not 0 <= outcome <= 1:
            raise RewardError(
                f"reward.reward_model.online.outcome: '{self._config.outcome}' says {outcome:g}, which is not from 0 to"
                " 1, and the reward model learns a probability"
            )
        return outcome is not None

    def _against_rule(self, rollouts: Sequence[Rollout]) -> Metrics:
        paid = [rollout for rollout in rollouts if f"{self._component}/logit" in rollout.rewards]
        if not paid:
            return {}
        said = [probability(rollout.rewards[f"{self._component}/logit"]) for rollout in paid]
        return judged(said, [rollout.rewards[self._config.outcome] for rollout in paid])

    def _remember(self, rollout: Judged) -> None:
        self._num_seen += 1
        if self._num_seen % EVERY_HELD_OUT == 0 and len(self._held_out) < NUM_HELD_OUT:
            self._held_out.append(rollout)
        else:
            self._buffer.append(rollout)

    async def _learn(self, step: int) -> Metrics:
        config, samples = self._config, list(map(_sample, range(len(self._buffer)), self._buffer))
        batches = deal(samples, config.batch_size, config.epochs, self._seed, step)
        updates = [(await self.backend.train_step(batch, OutcomeLoss("bce"))).metrics for batch in batches]
        of_updates = {name.removeprefix("of/"): value for name, value in means(updates, "of").items()}
        chosen = {name: of_updates[name] for name in _OF_UPDATES if name in of_updates}
        return {**chosen, "updates": float(len(updates)), **await self._moved()}

    async def _moved(self) -> Metrics:
        """What the model says of the held-out rollouts, and how far that is from what it said before."""
        if not self._held_out:
            return {}
        scored = (await self.backend.score(list(map(_sample, range(len(self._held_out)), self._held_out)))).values
        assert scored is not None  # a scalar model's
        now = [row[-1] for row in scored]
        before, self._before = self._before[: len(now)], now
        known = now[: len(before)]  # what was held out since then has no score before
        return {**drift(before, known), **drift((), now)}

    async def save(self, checkpoint: Path) -> None:
        """See `Kept.save`."""
        await self.backend.save(checkpoint / FOLDER)
        save_file(self._memory(), checkpoint / MEMORY)

    async def load(self, checkpoint: Path) -> None:
        """See `Kept.load`.

        Raises:
            ConfigError: there is none, or it is torn, or of another model.
        """
        if not (checkpoint / FOLDER).is_dir() or not (checkpoint / MEMORY).is_file():
            raise ConfigError(
                f"cannot go on from '{checkpoint}': it holds no reward model, and this run trains one; begin anew in"
                " another trainer.default_local_dir, with that checkpoint as model.path"
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
