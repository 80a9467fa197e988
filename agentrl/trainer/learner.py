"""The learner: cuts a step's samples into mini-batches of whole groups, and updates the policy on each."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import ceil, isfinite
from operator import itemgetter

from agentrl.algos.base import LossFunction
from agentrl.algos.mismatch import WatchedLoss, apart, mismatch_of
from agentrl.backends.base import Backend
from agentrl.samples import Sample
from agentrl.seeds import derive_seed

Correct = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, float]]]


def as_they_are(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
    """The correction of what needs none."""
    return list(samples), {}


class Learner:
    """Updates a backend.

    Args:
        mini_batch_groups: groups an update; None takes the whole step at once.
        epochs: passes over a step's samples.
        seed: groups are dealt into mini-batches in an order that depends on it and on the number of the update.
        correct: what the loss reads of a step's samples, and metrics of it: `Algorithm.correct`.
    """

    def __init__(
        self,
        backend: Backend,
        loss: LossFunction,
        *,
        mini_batch_groups: int | None,
        epochs: int,
        seed: int,
        correct: Correct = as_they_are,
    ) -> None:
        self._backend = backend
        self._loss = loss
        self._mini_batch_groups = mini_batch_groups
        self._epochs = epochs
        self._seed = seed
        self._correct = correct

    async def __call__(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Take all updates of one step. Metrics, as `actor/<name>`, are means over the updates that have them.

        `skipped_updates` is how many were skipped; what of those is not finite stands in no mean. `correction/…` says
        what was corrected. `mismatch/…` (`algos.mismatch.summary`) is of all tokens where the samples were scored, else
        of those of the first mini-batch: no other is computed with the weights that the step began with.

        Args:
            step: the version of the policy at its start.
        """
        corrected, metrics = await asyncio.to_thread(self._correct, samples)  # about a second for a million tokens
        mismatch = await asyncio.to_thread(mismatch_of, samples, step)
        updates: list[dict[str, float]] = []
        for batch in deal(corrected, self._mini_batch_groups, self._epochs, self._seed, step):
            loss = self._loss if updates or mismatch else WatchedLoss(self._loss, step)
            updates.append((await self._backend.train_step(batch, loss)).metrics)
        if updates and not mismatch:
            updates[0], mismatch = apart(updates[0])
        return {**means(updates, "actor"), "actor/updates": float(len(updates)), **metrics, **mismatch}


def means(updates: Sequence[dict[str, float]], whose: str) -> dict[str, float]:
    """`<whose>/<name>`: means over the updates that have the metric; of the skipped ones how many, and none of theirs
    that is not finite."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in sorted(chain.from_iterable(map(_figures, updates)), key=itemgetter(0)):
        values[name].append(value)
    counts = {"skipped_updates"}
    return {f"{whose}/{name}": sum(each) / (1 if name in counts else len(each)) for name, each in values.items()}


def _figures(update: dict[str, float]) -> list[tuple[str, float]]:
    skipped = bool(update.get("skipped_updates"))
    return [(name, value) for name, value in update.items() if isfinite(value) or not skipped]


def updates_per_step(num_groups: int, mini_batch_groups: int | None, epochs: int) -> int:
    """How many mini-batches `deal` makes of a step of so many groups."""
    return epochs * ceil(num_groups / (mini_batch_groups or num_groups))


def deal(
    samples: Sequence[Sample], mini_batch_groups: int | None, epochs: int, seed: int, step: int
) -> Iterator[list[Sample]]:
    """The mini-batches of all passes over a step's samples; each pass in an order of its own."""
    for epoch in range(epochs):
        yield from mini_batches(samples, mini_batch_groups, derive_seed(seed, "deal", step, epoch))


def mini_batches(samples: Sequence[Sample], num_groups: int | None, seed: int) -> Iterator[list[Sample]]:
    """Deal samples into mini-batches of `num_groups` whole groups in a random order; all in one where None."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.uid, []).append(sample)
    if num_groups is None or len(groups) <= num_groups:
        if samples:
            yield list(samples)
        return
    dealt = list(groups.values())
    random.Random(seed).shuffle(dealt)
    for start in range(0, len(dealt), num_groups):
        yield [sample for group in dealt[start : start + num_groups] for sample in group]
