"""Divisions of the devices between trainer and engine, as found by a search.

For all divisions except the best one, this module says why they are slower or not possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agentrl.plan.layout import Layout, Servers
from agentrl.plan.split.simulate import Split


class Lack(NamedTuple):
    """Why a division is not possible. The smallest `Lack` belongs to the division that is closest to being possible.

    Attributes:
        of_trainer: true if the trainer does not fit or its layout is refused; false if the servers do not fit, alone or
            together with the trainer.
        share: needed memory, as a multiple of the available memory.
    """

    of_trainer: bool
    share: float
    text: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A division of the fleet between trainer and engine.

    Attributes:
        train_s: seconds of the trainer's work in a step, if samples are divided equally over the ranks.
        rollout_s: seconds to sample the tokens of a step at full concurrency.
        bound_s: approximate lower bound of the seconds of a step.
        kv_tokens: tokens of KV cache of each data-parallel part of a server.
        split: the simulated run. None if `bound_s` is above the best simulated step, or if enough candidates with a
            smaller `bound_s` were simulated.
        price: US dollars per step; None if a price is unknown.
    """

    layout: Layout
    servers: Servers
    train_s: float
    rollout_s: float
    bound_s: float
    kv_tokens: float
    split: Split | None = None
    price: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step: simulated, or else `bound_s`."""
        return self.split.step_s if self.split else self.bound_s

    def phases(self, *, simulated: bool) -> dict[str, float]:
        """Return the seconds of each phase of a step, simulated or estimated."""
        trainer = f" on {_devices(self.layout.devices)}"
        engine = f" on {_devices(self.servers.devices)}"
        if not (simulated and self.split):
            return {f"training{trainer}": self.train_s, f"sampling{engine}": self.rollout_s}
        split, waited_s = self.split, self.split.trainer_idle * self.split.step_s
        trained_s = split.learn_s + split.score_s
        return {
            f"training{trainer}": trained_s,
            f"waiting for rollouts{engine}": waited_s,
            "publishing": split.step_s - trained_s - waited_s,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search.

    Attributes:
        ranked: the candidates, best first; candidates without a simulation come last.
        refused: number of training devices of each division that is not possible -> why it is not possible.
    """

    ranked: list[Candidate]
    refused: dict[int, Lack]

    def why_not(self, candidate: Candidate) -> str:
        """Return, in a few words, why a candidate is slower than the best."""
        best = self.ranked[0]
        if candidate.split is None and candidate.bound_s < best.step_s:
            return took(candidate)
        simulated = candidate.split is not None
        pairs = zip(
            candidate.phases(simulated=simulated).items(), best.phases(simulated=simulated).values(), strict=True
        )
        more_s, name, seconds, before = max((now - was, name, now, was) for (name, now), was in pairs)
        because = f", because {name} takes {seconds:.4g} s (best: {before:.4g} s)" if more_s > 0 else ""
        return f"{took(candidate)}, {compared(candidate.step_s, best.step_s, 'the best')}{because}"


def took(each: Candidate) -> str:
    """Return the seconds of a step as text: simulated, or an estimate."""
    return f"{each.step_s:.3g} s a step" if each.split else f"not simulated, estimate {each.bound_s:.3g} s a step"


def compared(seconds: float, others: float, name: str) -> str:
    """Return, as text, how much longer or shorter a step is than another step."""
    change = seconds / others - 1
    if round(100 * change) == 0:
        return f"as long as {name}"
    return f"{abs(change):.0%} {'longer' if change > 0 else 'shorter'} than {name}"


def _devices(number: int) -> str:
    return f"{number} device{'s' if number > 1 else ''}"
