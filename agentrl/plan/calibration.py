"""Hardware figures fitted to a measured run; predictions for other layouts and settings use them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.config.run import RunConfig
from agentrl.errors import DataError
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import Layout, Servers, layout_of, servers_of
from agentrl.plan.shapes import Shape
from agentrl.plan.split.replica import EngineSpeed
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import Instant, publish_s, samples_of, setting_of
from agentrl.plan.time.training import Training

if TYPE_CHECKING:
    from agentrl.plan.measured import Measured  # this would also import the reader of saved rollouts

FEWEST_STEPS, ENOUGH_ROLLOUTS = 4, 1_024
"""To fit the times of a run, about `ENOUGH_ROLLOUTS` rollouts are simulated, but at least `FEWEST_STEPS` steps."""
_HALVINGS = 20
_MOST = 1e4
_WIDENING = 4.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """Figures fitted to a run.

    Attributes:
        trainer: the hardware, with the share of the peak that the run's updates reached (not counting communication).
        engine_factor: factor by which predicted times of decoding and prefill are multiplied.
        publish_s, other_s: measured seconds of publishing, and of work in a step that belongs to no phase.
    """

    trainer: Hardware
    engine_factor: float = 1.0
    publish_s: float | None = None
    other_s: float = 0.0

    def engine(self, speed: EngineSpeed) -> EngineSpeed:
        """Return `speed` with all times multiplied by `engine_factor`."""
        return Scaled(speed, self.engine_factor)

    def publishing_s(self, shape: Shape, layout: Layout, servers: Servers, hardware: Hardware) -> float:
        """Return the measured seconds of publishing; without a measurement, the predicted seconds."""
        return publish_s(shape, layout, servers, hardware, hardware) if self.publish_s is None else self.publish_s


@dataclass(frozen=True, slots=True)
class Scaled:
    """The engine `speed`, with passes that take `factor` times as long."""

    speed: EngineSpeed
    factor: float

    def decode_s(self, rows: float, context: float) -> float:
        """See `EngineSpeed.decode_s`."""
        return self.factor * self.speed.decode_s(rows, context)

    def prefill_s(self, new: float, context: float) -> float:
        """See `EngineSpeed.prefill_s`."""
        return self.factor * self.speed.prefill_s(new, context)


def calibrate(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> Calibration:
    """Fit hardware figures to a run with `config` on `hardware`.

    Raises:
        DataError: the run has no metrics of a second step.
    """
    if measured.mean("timing_s/learn") is None:
        raise DataError(f"'{measured.name}': metrics.jsonl has no step after the first, so there is no time to fit")
    return Calibration(
        trainer=fit_trainer(measured, shape, hardware, config),
        engine_factor=fit_engine(measured, shape, hardware, config),
        publish_s=measured.median("timing_s/publish"),
        other_s=_other_s(measured),
    )


def fit_trainer(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> Hardware:
    """Return the hardware with the share of the peak at which predicted updates take as long as measured updates."""
    steps = [samples_of(measured.lengths, config, step) for step in range(_num_steps(measured, config))]
    layout, passes = layout_of(config), passes_of(config)

    def learn_s(slower: float) -> float:
        trainer = Training(shape, layout, with_share(hardware, hardware.share_of_peak / slower), passes)
        return statistics.fmean(map(trainer.learn_s, steps))

    slower = _solved(learn_s, measured.mean("timing_s/learn") or 0.0)
    return with_share(hardware, hardware.share_of_peak / slower)


def fit_engine(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> float:
    """Return the engine factor at which simulated rollouts, with the run's tool latencies, take the measured time.

    The factor is 1 for runs with staleness, because such runs do not report the time of a step's rollouts.
    """
    collect_s, servers = measured.mean("timing_s/collect"), servers_of(config)
    if not collect_s:
        return 1.0
    speed, num_steps = sampling_of(config, shape, servers, hardware), _num_steps(measured, config)
    setting = setting_of(config, servers, max_staleness=0, over_sampling=0.0)

    def seconds(factor: float) -> float:
        return simulate(measured.lengths, Scaled(speed, factor), Instant(), setting, num_steps, warm_up=0).step_s

    return _solved(seconds, collect_s)


def _num_steps(measured: Measured, config: RunConfig) -> int:
    """Return how many steps are simulated: enough for about `ENOUGH_ROLLOUTS` rollouts.

    The number is at least `FEWEST_STEPS`, but never more than the number of measured steps.
    """
    of_step = config.data.train_batch_size * config.group_size
    return min(max(FEWEST_STEPS, ENOUGH_ROLLOUTS // of_step), len(measured.steps))


def with_share(hardware: Hardware, share: float) -> Hardware:
    """Return the hardware with another share of the peak."""
    return hardware.model_copy(update={"share_of_peak": share})


def _solved(seconds_of: Callable[[float], float], seconds: float) -> float:
    """Return the factor at which `seconds_of`, which grows with the factor, equals `seconds`.

    The factor is between 1 / _MOST and _MOST; 1 if no such factor fits. The search starts at 1 and not at the limits,
    because a simulation with times that are much too long takes minutes.
    """
    low = high = 1.0
    while seconds_of(high) < seconds:
        if (high := high * _WIDENING) > _MOST:
            return 1.0
    while seconds_of(low) > seconds:
        if (low := low / _WIDENING) < 1 / _MOST:
            return 1.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if seconds_of(middle) < seconds else (low, middle)
    return math.sqrt(low * high)


def _other_s(measured: Measured) -> float:
    """Return the seconds of a step that belong to no phase: storing, logging, the loop itself."""
    phases = ("collect", "wait_rollouts", "score", "learn", "critic", "publish", "validate")
    known = sum(measured.median(f"timing_s/{name}") or 0.0 for name in phases)
    return max(0.0, (measured.median("timing_s/step") or known) - known)
