"""Predicted and measured seconds of each phase of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.measured import Measured
from agentrl.plan.shapes import Shape
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import publish_s, setting_of
from agentrl.plan.time.training import Training

STEPS = 6
"""Number of steps that are simulated with the lengths of the run."""
LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Phase:
    """Seconds of a phase of a step: predicted, and measured (median over the run's steps)."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


def check(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> list[Phase]:
    """Return the measured phases, longest first. Phases shorter than a thousandth of a step are left out.

    Args:
        measured: the run. Its lengths and tool latencies are known, so errors come only from predicted speeds.
        config: the configuration of the run.
    """
    predicted = predicted_phases(measured, shape, hardware, config)
    least = LEAST * (measured.median("timing_s/step") or 0.0)
    found = [
        Phase(name, predicted[name], seconds)
        for name, seconds in _measured(measured)
        if name in predicted and seconds >= least
    ]
    return sorted(found, key=lambda phase: -phase.measured_s)


def predicted_phases(measured: Measured, shape: Shape, hardware: Hardware, config: RunConfig) -> dict[str, float]:
    """Return the predicted seconds of each phase of a step, under the names of `timing_s/*`."""
    layout, servers = layout_of(config), servers_of(config)
    trainer = Training(shape, layout, hardware, passes_of(config))
    sent_s = publish_s(shape, layout, servers, hardware, hardware)
    engine = sampling_of(config, shape, servers, hardware)
    setting = setting_of(config, servers, publish_s=sent_s)
    split = simulate(measured.lengths, engine, trainer, setting, STEPS)
    waits = "wait_rollouts" if setting.max_staleness or setting.over_sampling else "collect"
    return {
        "step": split.step_s,
        waits: split.trainer_idle * split.step_s,
        "learn": split.learn_s,
        "score": split.score_s,
        "publish": sent_s,
    }


def check_lines(phases: Sequence[Phase]) -> Iterator[str]:
    """Yield the table of `agentrl plan --check RUN`: predicted and measured seconds, and the difference."""
    yield f"{'phase':<16}{'predicted':>12}{'measured':>12}{'difference':>12}"
    for phase in phases:
        yield f"{phase.name:<16}{phase.predicted_s:>10.4g} s{phase.measured_s:>10.4g} s{phase.off:>+12.0%}"


def _measured(measured: Measured) -> Iterator[tuple[str, float]]:
    for name in ("step", "collect", "wait_rollouts", "learn", "score", "publish"):
        if seconds := measured.median(f"timing_s/{name}"):
            yield name, seconds
