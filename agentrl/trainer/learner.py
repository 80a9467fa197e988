"""Named hooks that learn from the samples of a step; one of these hooks is the learner, which updates the policy."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, isfinite
from operator import itemgetter
from typing import Generic, TypeVar

from agentrl.algos.base import LossFunction
from agentrl.algos.off_policy.mismatch import WatchedLoss, mismatch_of, split_metrics
from agentrl.backends.base import Backend
from agentrl.telemetry.timing import Timer
from agentrl.trainer.protocols import Learn, Metrics, Publish
from agentrl.types.sample import Sample
from agentrl.utils.seeds import derive_seed

Correct = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, float]]]
Function = TypeVar("Function", Learn, Publish)


@dataclass(frozen=True, slots=True)
class Hook(Generic[Function]):
    """A named function that runs in each step."""

    name: str
    run: Function


def named(**functions: Function | None) -> list[Hook[Function]]:
    """Return a hook for each argument, in the order of the arguments. An argument that is None gets no hook."""
    return [Hook(name, function) for name, function in functions.items() if function is not None]


@dataclass(frozen=True, slots=True)
class StepHooks:
    """The hooks of a step, in phases. The phases run in the order below; each hook is timed as `timing_s/<name>`.

    Attributes:
        before_update: run on the step's samples, before the policy update.
        update: the update of the policy, or of a trained reward model; empty if the run trains nothing.
        after_update: run on the step's samples, after the policy update.
        before_publish: run before each publication of the policy's weights.
        publish: sends the policy's weights to the engine; empty if there is no engine.
    """

    timer: Timer
    before_update: Sequence[Hook[Learn]] = ()
    update: Sequence[Hook[Learn]] = ()
    after_update: Sequence[Hook[Learn]] = ()
    before_publish: Sequence[Hook[Publish]] = ()
    publish: Sequence[Hook[Publish]] = ()

    @property
    def names(self) -> list[str]:
        """Names of all hooks in order."""
        return [*(hook.name for hook in self._learning), *(hook.name for hook in self._publishing)]

    @property
    def _learning(self) -> Sequence[Hook[Learn]]:
        return (*self.before_update, *self.update, *self.after_update)

    @property
    def _publishing(self) -> Sequence[Hook[Publish]]:
        return (*self.before_publish, *self.publish)

    async def run_learn(self, samples: Sequence[Sample], step: int) -> Metrics:
        """Run the hooks that learn from a step's samples; return their metrics. For arguments see `Learn`."""
        metrics: Metrics = {}
        for hook in self._learning:
            with self.timer.timed(hook.name):
                metrics |= await hook.run(samples, step)
        return metrics

    async def run_publish(self, version: int) -> None:
        """Run the `before_publish` hooks, then publish the policy's weights as `version`."""
        for hook in self._publishing:
            with self.timer.timed(hook.name):
                await hook.run(version)


def uncorrected(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
    """Return the samples without an off-policy correction, and no metrics."""
    return list(samples), {}


class Learner:
    """Trains the model of a backend (the policy or a reward model) on the samples of each step.

    Args:
        mini_batch_groups: groups per update; None uses all groups of a step in one update.
        epochs: passes over a step's samples.
        seed: determines, with the step and the epoch, the random order of the groups before they are split into
            mini-batches.
        correct: off-policy correction: sets the samples' importance weights, removes rejected tokens from the loss
            mask and returns metrics; see `Algorithm.correct`.
        warmup: number of steps without updates at the start of the run.
    """

    def __init__(
        self,
        backend: Backend,
        loss: LossFunction,
        *,
        mini_batch_groups: int | None,
        epochs: int,
        seed: int,
        correct: Correct = uncorrected,
        warmup: int = 0,
    ) -> None:
        self._backend = backend
        self._loss = loss
        self._mini_batch_groups = mini_batch_groups
        self._epochs = epochs
        self._seed = seed
        self._correct = correct
        self._warmup = warmup

    async def __call__(self, samples: Sequence[Sample], step: int) -> dict[str, float]:
        """Run all updates of one step. Return metrics `actor/<name>`, each the mean over the updates that report it.

        During the warm-up, nothing is trained and no metrics are returned.

        `skipped_updates` is the number of skipped updates. Non-finite values of skipped updates are excluded from the
        means. The metrics of `correct` are added. `mismatch/…` (see `off_policy.mismatch.summary`) covers all tokens if
        the samples have `old_logprobs`. Otherwise it covers only the first mini-batch, because later mini-batches use
        new weights.

        Args:
            step: the policy version at the start of the step.
        """
        if step < self._warmup:
            return {}
        corrected, metrics = await asyncio.to_thread(self._correct, samples)  # about 1 s per million tokens
        mismatch = await asyncio.to_thread(mismatch_of, samples, step)
        updates: list[dict[str, float]] = []
        for batch in epoch_batches(corrected, self._mini_batch_groups, self._epochs, self._seed, step):
            loss = self._loss if updates or mismatch else WatchedLoss(self._loss, step)
            updates.append((await self._backend.train_step(batch, loss)).metrics)
        if updates and not mismatch:
            updates[0], mismatch = split_metrics(updates[0])
        return {**means(updates, "actor"), "actor/updates": float(len(updates)), **metrics, **mismatch}


def means(updates: Sequence[dict[str, float]], whose: str) -> dict[str, float]:
    """Return metrics `<whose>/<name>`, each the mean over the updates that report it.

    `skipped_updates` is a sum instead of a mean. Non-finite values of skipped updates are ignored.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in sorted(chain.from_iterable(map(_figures, updates)), key=itemgetter(0)):
        values[name].append(value)
    counts = {"skipped_updates"}
    return {f"{whose}/{name}": sum(each) / (1 if name in counts else len(each)) for name, each in values.items()}


def _figures(update: dict[str, float]) -> list[tuple[str, float]]:
    skipped = bool(update.get("skipped_updates"))
    return [(name, value) for name, value in update.items() if isfinite(value) or not skipped]


def updates_per_step(num_groups: int, mini_batch_groups: int | None, epochs: int) -> int:
    """Return the number of mini-batches that `epoch_batches` yields for `num_groups` groups."""
    return epochs * ceil(num_groups / (mini_batch_groups or num_groups))


def epoch_batches(
    samples: Sequence[Sample], mini_batch_groups: int | None, epochs: int, seed: int, step: int
) -> Iterator[list[Sample]]:
    """Yield the mini-batches of all passes over a step's samples; each pass shuffles the groups differently."""
    for epoch in range(epochs):
        yield from mini_batches(samples, mini_batch_groups, derive_seed(seed, "deal", step, epoch))


def mini_batches(samples: Sequence[Sample], num_groups: int | None, seed: int) -> Iterator[list[Sample]]:
    """Split samples into mini-batches of `num_groups` complete groups in random order; None: one mini-batch."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.uid, []).append(sample)
    if num_groups is None or len(groups) <= num_groups:
        if samples:
            yield list(samples)
        return
    shuffled = list(groups.values())
    random.Random(seed).shuffle(shuffled)
    for start in range(0, len(shuffled), num_groups):
        yield [sample for group in shuffled[start : start + num_groups] for sample in group]
