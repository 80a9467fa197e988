"""What the loop is made of, as protocols; `build.py` chooses the concrete classes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from agentrl.algos.base import Algorithm
from agentrl.attempt import Group
from agentrl.data.order import Draw
from agentrl.samples import Sample
from agentrl.telemetry.timing import Timer

Metrics = dict[str, float]
Learn = Callable[[Sequence[Sample], int], Awaitable[Metrics]]
"""Learns from the credited samples of a step, given the version of the policy at its start."""
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Best:
    """The step at which a validation metric was highest."""

    metric: str
    value: float
    step: int

    def __str__(self) -> str:
        return f"{self.metric} {self.value:.4g} at step {self.step}"


class Source(Protocol):
    """Where groups come from: live rollouts, saved conversations, stored rollouts.

    Attributes:
        position: how many tasks (or stored steps) were drawn so far.
        pending: those of them that no step took: they come first when the run goes on. With `position` all that must be
            saved to go on from here.
    """

    position: int
    pending: Sequence[Draw]

    def feeding(self) -> AbstractAsyncContextManager[None]:
        """While open, groups may be taken."""
        ...

    async def take(self, policy_version: int) -> list[Group]:
        """The groups of one step."""
        ...


class Progress(Protocol):
    """Where a run stands, kept so that it can go on.

    Attributes:
        best: the best step that was saved so far.
    """

    best: Best | None

    @property
    def latest_step(self) -> int | None:
        """The step after which it was kept last; None where there is nothing to go on from."""
        ...

    async def save(self, step: int, best: Best | None = None) -> None:
        """Keep the run as it is after `step`; with `best`, as its best so far."""
        ...

    async def restore(self) -> None:
        """Go on from there, if there is such a step; before any record is touched."""
        ...


class Kept(Protocol):
    """A part of a run whose state changes with it, and which a checkpoint keeps."""

    async def save(self, checkpoint: Path) -> None:
        """Write what is no longer as in the beginning into that folder."""
        ...

    async def load(self, checkpoint: Path) -> None:
        """Go on from there; what is not in it is as in the beginning."""
        ...


class AfterStep(Protocol):
    """Everything a person or a disk wants to know about a step."""

    async def begin(self) -> int:
        """Restore a saved run or start a new one; the step to go on from."""
        ...

    def finished(self, step: int) -> bool:
        """Whether the run ends here."""
        ...

    async def __call__(self, step: int, groups: Sequence[Group], samples: Sequence[Sample], stats: Metrics) -> None:
        """Step `step` is done; `samples` are the credited ones of `groups`."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run."""

    source: Source
    algorithm: Algorithm
    scorer: Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
    learner: Learn
    publish: Callable[[int], Awaitable[None]]
    after_step: AfterStep


def timed(timer: Timer, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """`part`, its seconds counted as `timing_s/<name>`."""

    async def counted(*args: P.args, **kwargs: P.kwargs) -> R:
        with timer.timed(name):
            return await part(*args, **kwargs)

    return counted
