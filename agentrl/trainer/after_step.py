"""After each step: log, validate, save, and decide whether the run is over; each on its schedule."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from agentrl.config import RunConfig
from agentrl.errors import ConfigError, suggestion
from agentrl.rollouts.metrics import rollout_metrics
from agentrl.telemetry.timing import Timer
from agentrl.trainer.checkpoint import Checkpoints
from agentrl.trainer.parts import Metrics
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.records import Records
from agentrl.trainer.validator import Validator
from agentrl.trajectory import Group

Publish = Callable[[int], Awaitable[None]]


class AfterStep:
    """Keeps a run's records.

    Args:
        total_steps: where the run ends, unless `config.stop_when` ends it earlier.
        validator: None where there is nothing to validate on.
        records: where metrics and samples go.
    """

    def __init__(
        self,
        config: RunConfig,
        total_steps: int,
        checkpoints: Checkpoints,
        publish: Publish,
        validator: Validator | None,
        records: Records,
        timer: Timer,
        profiler: StepProfiler,
    ) -> None:
        self.last_validation: tuple[dict[str, float], list[Group]] | None = None
        self.first_validation: dict[str, float] | None = None
        self._config = config.trainer
        self._success_threshold = config.reward.success_threshold
        self._total_steps = total_steps
        self._checkpoints = checkpoints
        self._publish = publish
        self._validator = validator
        self._records = records
        self._timer = timer
        self._profiler = profiler
        self._step_started = 0.0
        self._good_enough = False

    async def begin(self) -> int:
        """Go on from the latest checkpoint where there is one; else start at 0, and validate if asked."""
        step = 0 if self._checkpoints.latest_step is None else await self._checkpoints.restore()
        if step:
            print(f"going on from step {step}")
        await self._publish(step)
        if step and self._validator and self._config.stop_when and self._due(step, self._config.test_freq):
            await self._validate(step)  # the run may have reached its goal when it was saved
        if step == 0 and self._validator and self._config.val_before_train:
            self._records.log(0, await self._validate(0))
        self._start_step(step + 1)
        return step

    def finished(self, step: int) -> bool:
        """Whether the last step, or the goal of `stop_when`, is reached."""
        return self._good_enough or step >= self._total_steps

    async def __call__(self, step: int, groups: Sequence[Group], stats: Metrics) -> None:
        """Log step `step`, validate and save where it is time to."""
        metrics = {**self._group_metrics(groups), **stats, **self._timings(groups)}
        self._profiler.end(step)
        if self._validator and self._due(step, self._config.test_freq):
            metrics |= await self._validate(step)
        self._records.log(step, metrics)
        if self._due(step, self._config.save_freq):
            await self._checkpoints.save(step)
        self._start_step(step + 1)  # validation and saving belong to no step

    def _start_step(self, step: int) -> None:
        if not self.finished(step - 1):
            self._profiler.begin(step)
        self._timer.take()
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

    async def _validate(self, step: int) -> Metrics:
        assert self._validator  # asked for only where there is one
        started = time.perf_counter()
        self.last_validation = metrics, groups = await self._validator(step)
        self._records.log_generations(step, groups)
        self.first_validation = self.first_validation or metrics
        if goal := self._config.stop_when:
            if goal.metric not in metrics:
                hint = suggestion(goal.metric, metrics)
                raise ConfigError(f"'trainer.stop_when.metric': validation has no '{goal.metric}': {hint}")
            self._good_enough = metrics[goal.metric] >= goal.at_least
        return {**metrics, "timing_s/validate": time.perf_counter() - started}
