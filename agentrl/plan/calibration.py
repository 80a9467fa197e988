"""Figures of the hardware fitted to a measured run, so that predictions for other layouts start from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.measured import Measured
from agentrl.plan.shapes import Shape
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.simulate import LearnSpeed, simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import Sampling
from agentrl.plan.time.step import Instant, number_of, samples_of, setting_of
from agentrl.plan.time.training import Training
from agentrl.types.sample import Sample

STEPS = 4
"""Steps of the run whose lengths are used."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors of the predicted seconds, so that the measured run is met. 1: the hardware figures were right.

    Attributes:
        sampling: of decoding and prefill.
        learning, scoring: of the update, and of the forward passes before it.
        publish_s, other_s: measured seconds of publishing, and of a step outside of all phases.
    """

    sampling: float = 1.0
    learning: float = 1.0
    scoring: float = 1.0
    publish_s: float | None = None
    other_s: float = 0.0

    def engine(self, speed: EngineSpeed) -> EngineSpeed:
        """Return the speed with the factor."""
        return _Slower(speed, self.sampling)

    def trainer(self, speed: LearnSpeed) -> LearnSpeed:
        """Return the speed with the factors."""
        return _SlowerTrainer(speed, self.learning, self.scoring)


def calibrate(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> Calibration:
    """Fit the factors to a run with `config` on `hardware`.

    The factor of the engine is found by simulating the rollouts of the run with its tool latencies: the mean time of a
    rollout and the waiting time of the trainer are matched at staleness 0.

    Raises:
        DataError: the run has no metrics of a second step.
    """
    learn_s, score_s = measured.mean("timing_s/learn"), measured.mean("timing_s/score")
    if learn_s is None:
        raise DataError(f"'{measured.name}': metrics.jsonl has no step after the first, so there is no time to fit")
    steps = [samples_of(measured.lengths, config, step) for step in range(STEPS)]
    trainer = Training(shape, layout_of(config), hardware, passes_of(config))
    collect_s = measured.mean("timing_s/collect")
    return Calibration(
        sampling=_engine_factor(measured, shape, hardware, config, collect_s) if collect_s else 1.0,
        learning=_ratio(learn_s, trainer.learn_s, steps),
        scoring=_ratio(score_s, trainer.score_s, steps) if score_s else 1.0,
        publish_s=measured.mean("timing_s/publish"),
        other_s=_other_s(measured),
    )


def _ratio(seconds: float, predict: Callable[[Sequence[Sample]], float], steps: Sequence[Sequence[Sample]]) -> float:
    predicted = statistics.fmean(map(predict, steps))
    return seconds / predicted if predicted else 1.0


def _engine_factor(
    measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig, collect_s: float
) -> float:
    """Find the factor with which simulated steps collect for `collect_s`, by bisection of its logarithm."""
    servers = servers_of(config)
    speed = Sampling(shape, servers, hardware, number_of(config))
    setting = setting_of(config, servers, max_staleness=0, over_sampling=0.0)

    def simulated(factor: float) -> float:
        return simulate(measured.lengths, _Slower(speed, factor), Instant(), setting, STEPS).step_s

    low, high = 1e-3, 1e5
    if simulated(low) >= collect_s:  # the tools alone take that long
        return 1.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if simulated(middle) < collect_s else (low, middle)
    return math.sqrt(low * high)


def _other_s(measured: Measured) -> float:
    """Seconds of a step that no phase explains: storing, logging, the loop itself."""
    phases = ("collect", "wait_rollouts", "score", "learn", "critic", "publish", "validate")
    known = sum(measured.mean(f"timing_s/{name}") or 0.0 for name in phases)
    return max(0.0, (measured.mean("timing_s/step") or known) - known)


@dataclass(frozen=True, slots=True)
class _Slower:
    speed: EngineSpeed
    factor: float

    def decode_s(self, rows: float, context: float) -> float:
        """See `EngineSpeed.decode_s`."""
        return self.factor * self.speed.decode_s(rows, context)

    def prefill_s(self, new: float, context: float) -> float:
        """See `EngineSpeed.prefill_s`."""
        return self.factor * self.speed.prefill_s(new, context)


@dataclass(frozen=True, slots=True)
class _SlowerTrainer:
    speed: LearnSpeed
    learning: float
    scoring: float

    def learn_s(self, samples: Sequence[Sample]) -> float:
        """See `LearnSpeed.learn_s`."""
        return self.learning * self.speed.learn_s(samples)

    def score_s(self, samples: Sequence[Sample]) -> float:
        """See `LearnSpeed.score_s`."""
        return self.scoring * self.speed.score_s(samples)
