"""Output of the predicted times: a one-line verdict, a table, and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from agentrl.plan.split.simulate import Split
from agentrl.plan.time.step import StepTime


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """Predicted times of a run.

    Attributes:
        phases: seconds of each phase if it runs alone.
        split: the simulated run, with the staleness and the over-sampling of the configuration.
        hourly: price of all devices, in US dollars per hour; None if it is unknown.
        devices: the devices, as text.
    """

    phases: StepTime
    split: Split
    hourly: float | None
    devices: str

    @property
    def price(self) -> float | None:
        """US dollars per step; None if a price is unknown."""
        return None if self.hourly is None else self.hourly * self.split.step_s / 3600

    @property
    def bottleneck(self) -> str:
        """The longest phase; if rollouts overlap with updates, the side that is less idle (rollout or training)."""
        if self.split.staleness.keys() == {0}:
            return self.phases.bottleneck
        return "rollout" if self.split.trainer_idle > self.split.engine_idle else "training"


def verdict(answer: TimeAnswer) -> str:
    """Return the answer in one line."""
    split = answer.split
    price = "price unknown" if answer.price is None else f"${answer.price:.3g} a step"
    idle = f" (trainer idle {split.trainer_idle:.0%}, engine idle {split.engine_idle:.0%})"
    rollouts = idle if split.engine_idle < 1 else ""  # an algorithm that samples nothing has no engine
    return f"{split.step_s:.3g} s a step on {answer.devices}, {price}; bottleneck: {answer.bottleneck}{rollouts}"


def table(answer: TimeAnswer) -> Iterator[str]:
    """Yield the lines of the table: seconds by phase, then the simulated run."""
    rows = [
        ("rollouts alone", answer.phases.rollout_s),
        ("scores before the update", answer.phases.score_s),
        ("update", answer.phases.learn_s),
        ("publishing weights", answer.phases.publish_s),
        ("step, simulated", answer.split.step_s),
    ]
    yield from (f"{name:<26}{seconds:>10.4g} s" for name, seconds in rows if seconds)
    ages = ", ".join(f"{age}: {share:.0%}" for age, share in answer.split.staleness.items())
    yield f"{'staleness':<26}{ages}"
    if answer.split.requeued:
        yield f"{'tasks restarted per step':<26}{answer.split.requeued:>10.3g}"
    yield f"{'tokens per step':<26}{answer.split.tokens_per_step:>10,.0f}"


def as_json(answer: TimeAnswer) -> dict[str, JsonValue]:
    """Return all numbers. Times are seconds, shares are between 0 and 1."""
    split = {name: value for name, value in asdict(answer.split).items() if name != "spans"}
    split["staleness"] = {str(age): share for age, share in answer.split.staleness.items()}
    return {
        "devices": answer.devices,
        "bottleneck": answer.bottleneck,
        "price_per_step": answer.price,
        "phases": asdict(answer.phases),
        "simulated": split,
    }
