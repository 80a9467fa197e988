"""Simulation of a run in virtual time.

The training loop, the rollout sources and the admission of tasks are the code of real runs. Engine and trainer compute
nothing: the simulation waits for the predicted seconds of their work.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from agentrl.algos.base import LossFunction, Need
from agentrl.data.order import TaskOrder
from agentrl.plan.lengths import Lengths
from agentrl.plan.split.clock import run_virtual
from agentrl.plan.split.machine import Machine, Span
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.rollouts import Simulator
from agentrl.plan.split.setting import Setting
from agentrl.rollouts.collector import roll_out
from agentrl.telemetry.timing import Timer
from agentrl.trainer.loop import train
from agentrl.trainer.protocols import Metrics, Parts, Source
from agentrl.trainer.sources.admission import Admissions
from agentrl.trainer.sources.live import LiveSource, task_of
from agentrl.trainer.sources.streaming import StreamingSource
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample
from agentrl.types.task import Task


class LearnSpeed(Protocol):
    """Speed of the trainer."""

    def score_s(self, samples: Sequence[Sample]) -> float:
        """Return the seconds of all forward passes before the update: old log-probabilities, reference, critic."""
        ...

    def learn_s(self, samples: Sequence[Sample]) -> float:
        """Return the seconds of the update."""
        ...


@dataclass(frozen=True, slots=True)
class Split:
    """Result of a simulation: averages over `num_steps` steps after the warm-up steps, except where noted.

    Attributes:
        trainer_idle: share of the time in which the trainer waits for rollouts.
        engine_idle: share of the time in which a replica runs no request or is paused, mean over replicas.
        learn_s, score_s: seconds of a step's update, and of the forward passes before it.
        staleness: value of staleness -> share of the groups with this value.
        requeued: tasks restarted per step.
        partial: share of the rollouts that several policy versions sampled.
        wasted: share of all started rollouts, warm-up included, that no step trained on and that will not be used.
        tokens_per_step: tokens of the trained trajectories.
        rollout_s: mean seconds of a rollout, warm-up included.
        spans: timeline.
    """

    step_s: float
    num_steps: int
    trainer_idle: float
    engine_idle: float
    learn_s: float
    score_s: float
    staleness: dict[int, float]
    requeued: float
    partial: float
    wasted: float
    tokens_per_step: float
    rollout_s: float
    spans: list[Span] = field(repr=False, default_factory=list)

    @property
    def steps_per_s(self) -> float:
        """Steps per second."""
        return 1 / self.step_s

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the groups."""
        return sum(age * share for age, share in self.staleness.items())


def simulate(
    lengths: Lengths,
    engine: EngineSpeed,
    learner: LearnSpeed,
    setting: Setting,
    num_steps: int | None = None,
    warm_up: int | None = None,
) -> Split:
    """Simulate `num_steps` steps after `warm_up` steps, in virtual time and without a model.

    Args:
        num_steps, warm_up: numbers of steps; if None, the values of `setting`.
    """
    steps = setting.num_steps if num_steps is None else num_steps
    before = setting.warm_up if warm_up is None else warm_up
    return run_virtual(_Run(lengths, engine, learner, setting, steps, before).split())


class _Run:
    """One simulated run; created in a running event loop."""

    def __init__(
        self,
        lengths: Lengths,
        engine: EngineSpeed,
        learner: LearnSpeed,
        setting: Setting,
        num_steps: int,
        warm_up: int,
    ) -> None:
        self._lengths, self._engine, self._learner = lengths, engine, learner
        self._setting, self._warm_up, self._num_steps = setting, warm_up, num_steps + warm_up
        self._ages = Counter[int]()
        self._partial: list[bool] = []
        self._tokens: list[int] = []
        self._requeued: list[float] = []
        self._take_s: list[float] = []
        self._ends: list[float] = []
        self._busy: list[float] = []
        self._learn: list[float] = []
        self._scored_s: list[float] = [0.0]

    async def split(self) -> Split:
        """Run the simulation, and return the averages."""
        setting = self._setting
        self._machine = Machine(
            self._engine,
            setting.num_replicas,
            setting.max_running,
            setting.max_kv_tokens,
            setting.contention,
            setting.exclusive,
        )
        self._simulator = Simulator(
            self._machine, self._lengths, setting.group_size, setting.recompute, setting.shares_prompts
        )
        self._source = self._open_source()
        taking = _Taking(self._source, self._took)
        await train(Parts(taking, _PassThrough(self._simulator), self._score, self._learn_step, self._publish, self))
        return self._averages()

    def _open_source(self) -> Source:
        """Build the source as `trainer.builders.sources` does for live rollouts."""
        setting, seed, slots = self._setting, 0, asyncio.Semaphore(self._setting.max_concurrent)
        num_rows = (self._num_steps + setting.max_staleness + 2) * setting.groups_per_step * 2
        tasks, order = [Task([], index=row) for row in range(num_rows)], TaskOrder(num_rows, seed, shuffle=False)
        if not setting.overlaps:
            collect = partial(roll_out, self._simulator.attempts, n=setting.group_size, slots=slots)
            return LiveSource(tasks, order, setting.groups_per_step, collect, seed)
        return StreamingSource(
            Admissions(
                order.at, setting.groups_per_step, setting.max_staleness, setting.over_sampling, self._num_steps
            ),
            partial(task_of, tasks=tasks, seed=seed),
            self._simulator.attempts,
            slots,
            setting.max_concurrent,
            setting.max_staleness,
            Timer(asyncio.get_running_loop().time),
            num_rollouts=setting.group_size,
        )

    def _took(self, groups: Sequence[Group], version: int, seconds: float) -> None:
        self._take_s.append(seconds)
        if len(self._take_s) > self._warm_up:
            self._ages.update(group.staleness(version) for group in groups)
            rollouts = [rollout for group in groups for rollout in group.rollouts]
            self._partial += [len(set(rollout.policy_versions)) > 1 for rollout in rollouts]
            self._requeued.append(self._source.metrics().get("staleness/requeued", 0.0))

    async def _score(self, samples: Sequence[Sample]) -> list[Sample]:
        before = self._machine.learn_s
        if seconds := self._learner.score_s(samples):
            await self._machine.learn(seconds, "score")
        self._scored_s.append(self._machine.learn_s - before)
        return list(samples)

    async def _learn_step(self, samples: Sequence[Sample], step: int) -> Metrics:
        await self._machine.learn(self._learner.learn_s(samples))
        self._tokens.append(sum(sample.token_ids[-1] + 1 for sample in samples))
        return {}

    async def _publish(self, version: int) -> None:
        await self._machine.publish(self._setting.publish_s, version, self._setting.recompute)

    async def begin(self) -> int:
        """See `AfterStep.begin`."""
        self._record()
        return 0

    def finished(self, step: int) -> bool:
        """See `AfterStep.finished`."""
        return step >= self._num_steps

    async def __call__(self, step: int, groups: Sequence[Group], samples: Sequence[Sample], stats: Metrics) -> None:
        """See `AfterStep.__call__`."""
        await asyncio.sleep(self._setting.other_s)
        self._record()

    def _record(self) -> None:
        for replica in self._machine.replicas:
            replica.update()
        self._ends.append(asyncio.get_running_loop().time())
        self._busy.append(sum(replica.busy_s for replica in self._machine.replicas))
        self._learn.append(self._machine.learn_s)

    def _averages(self) -> Split:
        num, first = self._num_steps - self._warm_up, self._warm_up
        elapsed = self._ends[-1] - self._ends[first]
        busy = (self._busy[-1] - self._busy[first]) / len(self._machine.replicas)
        trained = self._setting.groups_per_step * self._setting.group_size * self._num_steps
        started, scored_s = self._simulator.num_started, sum(self._scored_s[first + 1 :])
        ended = len(self._simulator.ended)
        return Split(
            step_s=elapsed / num,
            num_steps=num,
            trainer_idle=sum(self._take_s[self._warm_up :]) / elapsed,
            engine_idle=1 - busy / elapsed,
            learn_s=(self._learn[-1] - self._learn[first] - scored_s) / num,
            score_s=scored_s / num,
            staleness={age: count / self._ages.total() for age, count in sorted(self._ages.items())},
            requeued=statistics.fmean(self._requeued),
            partial=statistics.fmean(self._partial),
            wasted=max(0, started - trained) / started,
            tokens_per_step=statistics.fmean(self._tokens[self._warm_up :]),
            rollout_s=self._simulator.spent_s / ended,
            spans=self._machine.spans,
        )


class _Taking:
    """A source that reports the result and the seconds of each `take`."""

    def __init__(self, source: Source, took: Callable[[Sequence[Group], int, float], None]) -> None:
        self._source, self._took = source, took
        self.live = True
        self.position, self.pending = source.position, source.pending
        self.published, self.metrics = source.published, source.metrics

    @asynccontextmanager
    async def feeding(self) -> AsyncIterator[None]:
        """See `Source.feeding`."""
        async with self._source.feeding():
            yield

    async def take(self, policy_version: int) -> list[Group]:
        """See `Source.take`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        groups = await self._source.take(policy_version)
        self._took(groups, policy_version, loop.time() - started)
        return groups


@dataclass(frozen=True, slots=True)
class _PassThrough:
    """An algorithm that makes samples of the planned lengths, without advantages."""

    simulator: Simulator
    needs: frozenset[Need] = frozenset()

    @property
    def loss(self) -> LossFunction:
        """Not available, because a simulation computes no loss."""
        raise NotImplementedError("a simulation computes no loss")

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """See `Algorithm.samples`."""
        return self.simulator.samples(groups)

    def credit(self, groups: Sequence[Group], samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples unchanged."""
        return list(samples)

    def correct(self, samples: Sequence[Sample]) -> tuple[list[Sample], Metrics]:
        """Return the samples unchanged."""
        return list(samples), {}
