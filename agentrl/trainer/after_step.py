"""Work after each step: store, log, validate, save, and decide whether the run is over."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence

from agentrl.concurrency.stopping import StopAsked, begin_steps, stop
from agentrl.config import RunConfig
from agentrl.rollouts.metrics import excluded_metrics, rollout_metrics
from agentrl.run_folder.checkpoints import SAVING, Best
from agentrl.telemetry.timing import Timer
from agentrl.trainer.finished import goal_reached
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.protocols import Metrics, Progress, Publish
from agentrl.trainer.records import Records
from agentrl.trainer.sources.exclusions import Exclusions
from agentrl.trainer.validator import metric_value
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

Validate = Callable[[int], Awaitable[tuple[Metrics, list[Group]]]]
"""Function (step) -> (metrics, groups). It validates, on held-out tasks, the weights that this step produced."""


class AfterStep:
    """Stores and logs every step. Validation and saving have their own schedules.

    Args:
        total_steps: the last step, unless `trainer.stop_when` ends the run earlier.
        progress: saves the progress of the run.
        validator: None if there are no validation tasks.
        records: stores rollouts and logs metrics.
        exclusions: collects the rollouts of a step that are not trained on.
        meters: functions that return additional metrics, counted since their last call. They are called at the end of
            each step. They are also called at the start of a step, only to discard the counts of validation and
            saving, which belong to no step.
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
        exclusions: Exclusions | None = None,
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
        self._exclusions = exclusions or Exclusions()
        self._step_started = 0.0
        self._saved_s = 0.0
        self._goal = progress.goal
        self._good_enough = goal_reached(progress.goal, self._config.stop_when)
        self._new_best: Best | None = None  # the latest validation, if it is the best so far and not yet saved

    async def begin(self) -> int:
        """Start a new run or continue the restored run; return the number of the last finished step, or 0.

        A new run is first validated if `val_before_train` is set.
        """
        saved = self.progress.latest_step
        step = saved or 0
        if saved is not None:
            print(f"finished at step {step}: writing the report" if self.finished(step) else f"resuming at step {step}")
        if saved is None or not self.finished(step):
            self._records.start_after(-1 if saved is None else saved)
        await self._publish(step)
        await (self._start_new_run() if saved is None else self._resume(step))
        self._start_step(step + 1)
        self._saved_s = time.monotonic()
        if self._config.mode in SAVING:
            begin_steps()
        return step

    async def _start_new_run(self) -> None:
        if self._validator and self._config.val_before_train:
            self._records.log(0, await self._validate(0))
        if self._new_best or self.finished(0):  # a run without steps saves a checkpoint, too
            await self._save(0)

    async def _resume(self, step: int) -> None:
        """Load the last validation of a finished run. Validate again if `stop_when` now names another metric."""
        goal, wanted = self._goal, self._config.stop_when
        known = wanted is None or (goal is not None and goal.metric == wanted.metric)
        if self._validator and not known and self._due(step, self._config.test_freq):
            await self._validate(step, recorded=False)  # this validation is already logged and stored
        elif self.finished(step) and (groups := self._records.validated(step)):
            self.last_validation = {}, groups  # the run may have been killed before its report was written
        if self._new_best:
            await self._save(step)

    def finished(self, step: int) -> bool:
        """Return whether `step` is the last step, or the goal of `trainer.stop_when` is reached."""
        return self._good_enough or step >= self._total_steps

    async def __call__(self, step: int, groups: Sequence[Group], samples: Sequence[Sample], stats: Metrics) -> None:
        """Store the rollouts of `step` and log its metrics. Validate and save, each if it is due at this step."""
        with self._timer.timed("store"):
            dropped, excluded = self._exclusions.take()
            self._records.store_rollouts(step, groups, samples, excluded, dropped)
        metrics = {**self._group_metrics(groups), **stats, **self._timings(groups)}
        for meter in self._meters:
            metrics |= meter()
        metrics |= excluded_metrics(groups, excluded)
        self._profiler.end(step)
        if self._validator and self._due(step, self._config.test_freq):
            metrics |= await self._validate(step)
        self._records.log(step, metrics)
        self.progress.check()
        if saved := bool(self._new_best) or self._due(step, self._config.save_freq) or self._save_is_late():
            await self._save(step)
        if stop.asked and not self.finished(step):
            if not saved:
                await self._save(step)
            raise StopAsked
        self._start_step(step + 1)  # after validation and saving, which belong to no step

    def _save_is_late(self) -> bool:
        every_s = self._config.save_interval_s
        return every_s is not None and time.monotonic() - self._saved_s >= every_s

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
        """Return the metrics of sampled rollouts; empty if all groups are saved conversations."""
        sampled = [g for g in groups if any(t.sampled for r in g.rollouts for t in r.trajectories)]
        return rollout_metrics(sampled, self._success_threshold) if sampled else {}

    async def _validate(self, step: int, *, recorded: bool = True) -> Metrics:
        assert self._validator  # callers check that there is a validator
        started = time.perf_counter()
        self.last_validation = metrics, groups = await self._validator(step)
        if recorded:
            self._records.log_validation(step, groups)
        if wanted := self._config.stop_when:
            value = metric_value("trainer.stop_when.metric", wanted.metric, metrics)
            self._goal = Best(wanted.metric, value, step)
            self._good_enough = goal_reached(self._goal, wanted)
        if name := self._config.save_best:
            self._look_for_best(Best(name, metric_value("trainer.save_best", name, metrics), step))
        return {**metrics, "timing_s/validate": time.perf_counter() - started}

    def _look_for_best(self, now: Best) -> None:
        best = self.progress.best
        bar = best.value if best and best.metric == now.metric else -math.inf
        if now.value > bar:  # a comparison with NaN is False
            self._new_best = now

    async def _save(self, step: int) -> None:
        best, self._new_best = self._new_best, None
        await self.progress.save(step, best, self._goal)
        self._saved_s = time.monotonic()
