"""After each step: store, log, validate, save, and decide whether the run is over; each on its schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence

from agentrl.attempt import Group
from agentrl.config import RunConfig
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.samples import Sample
from agentrl.telemetry.timing import Timer
from agentrl.trainer.checkpoint import BEST, CHECKPOINTS
from agentrl.trainer.parts import Best, Metrics, Progress
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.records import Records
from agentrl.trainer.validator import metric_value

Publish = Callable[[int], Awaitable[None]]
Validate = Callable[[int], Awaitable[tuple[Metrics, list[Group]]]]
"""What the weights after a step achieve on held-out tasks: metrics, and the rollouts behind them."""


class AfterStep:
    """Keeps a run's records, and the run itself.

    Args:
        total_steps: where the run ends, unless `config.stop_when` ends it earlier.
        progress: what the run is saved by.
        validator: None where there is nothing to validate on.
        records: where metrics and samples go.
        meters: further metrics of a step. Each is asked at its end; also at its start, and then the answer is dropped:
            what is counted while validating and saving belongs to no step.
    """

    def __init__(
        self,
        config: RunConfig,
        total_steps: int,
        progress: Progress,
        publish: Publish,
        validator: Validate | None,
        records: Records,
        timer: Timer,
        profiler: StepProfiler,
        meters: Sequence[Callable[[], Metrics]] = (),
    ) -> None:
        self.last_validation: tuple[dict[str, float], list[Group]] | None = None
        self._config = config.trainer
        self._success_threshold = config.reward.success_threshold
        self._total_steps = total_steps
        self.progress = progress
        self._publish = publish
        self._validator = validator
        self._records = records
        self._timer = timer
        self._profiler = profiler
        self._meters = meters
        self._step_started = 0.0
        self._good_enough = False
        self._new_best: Best | None = None  # of the latest validation, until it is saved

    async def begin(self) -> int:
        """Go on from the step that was restored, if one was; else start at 0, and validate if asked."""
        saved = self.progress.latest_step
        step = saved or 0
        if saved is not None:
            done = self.finished(step)
            print(f"already finished at step {step}: nothing to do" if done else f"going on from step {step}")
        self._records.go_on_from(-1 if saved is None else saved)
        await self._publish(step)
        await (self._begin_anew() if saved is None else self._go_on(step))
        self._start_step(step + 1)
        return step

    async def _begin_anew(self) -> None:
        if self._validator and self._config.val_before_train:
            self._records.log(0, await self._validate(0))
        if self._new_best or self.finished(0):  # a run always leaves a checkpoint
            await self._save(0)

    async def _go_on(self, step: int) -> None:
        """Find out again what was known when the run was saved: whether its goal is reached, what it showed last."""
        if self._validator and self._config.stop_when and self._due(step, self._config.test_freq):
            await self._validate(step, recorded=False)  # the record of it is kept
        elif self.finished(step) and (groups := self._records.validated(step)):
            self.last_validation = {}, groups  # a kill may have cost the run its last page
        if self._new_best:
            await self._save(step)

    def finished(self, step: int) -> bool:
        """Whether the last step, or the goal of `stop_when`, is reached."""
        return self._good_enough or step >= self._total_steps

    async def __call__(self, step: int, groups: Sequence[Group], samples: Sequence[Sample], stats: Metrics) -> None:
        """Store and log step `step`, validate and save where it is time to."""
        with self._timer.timed("store"):
            self._records.store_rollouts(step, groups, samples)
        metrics = {**self._group_metrics(groups), **stats, **self._timings(groups)}
        for meter in self._meters:
            metrics |= meter()
        self._profiler.end(step)
        if self._validator and self._due(step, self._config.test_freq):
            metrics |= await self._validate(step)
        self._records.log(step, metrics)
        if self._new_best or self._due(step, self._config.save_freq):
            await self._save(step)
        self._start_step(step + 1)  # validation and saving belong to no step

    def _start_step(self, step: int) -> None:
        if not self.finished(step - 1):
            self._profiler.begin(step)
        self._timer.take()
        for meter in self._meters:
            meter()
        self._step_started = time.perf_counter()

    def _timings(self, groups: Sequence[Group]) -> Metrics:
        seconds = time.perf_counter() - self._step_started
        num_tokens = sum(len(t.token_ids) for g in groups for r in g.rollouts for t in r.trajectories)
        return {**self._timer.take(), "timing_s/step": seconds, "perf/tokens_per_s": num_tokens / seconds}

    def _due(self, step: int, every: int) -> bool:
        return self.finished(step) or bool(every and step % every == 0)

    def _group_metrics(self, groups: Sequence[Group]) -> Metrics:
        """Metrics of live rollouts; a saved conversation has none of its own."""
        sampled = [g for g in groups if any(t.sampled for r in g.rollouts for t in r.trajectories)]
        return rollout_metrics(sampled, self._success_threshold) if sampled else {}

    async def _validate(self, step: int, *, recorded: bool = True) -> Metrics:
        assert self._validator  # asked for only where there is one
        started = time.perf_counter()
        self.last_validation = metrics, groups = await self._validator(step)
        if recorded:
            self._records.log_validation(step, groups)
        if goal := self._config.stop_when:
            self._good_enough = metric_value("trainer.stop_when.metric", goal.metric, metrics) >= goal.at_least
        if name := self._config.save_best:
            self._look_for_best(Best(name, metric_value("trainer.save_best", name, metrics), step))
        return {**metrics, "timing_s/validate": time.perf_counter() - started}

    def _look_for_best(self, now: Best) -> None:
        best = self.progress.best
        bar = best.value if best and best.metric == now.metric else -math.inf
        if now.value > bar:  # never where it is NaN
            self._new_best = now

    async def _save(self, step: int) -> None:
        best, self._new_best = self._new_best, None
        await self.progress.save(step, best)
        if best:
            print(f"best so far: {best}; saved as {CHECKPOINTS}/{BEST}")
