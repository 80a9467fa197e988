"""What the loop is made of, as protocols; `build.py` chooses the concrete classes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from agentrl.algos.base import Algorithm
from agentrl.samples import Sample
from agentrl.trajectory import Group

Metrics = dict[str, float]


class Source(Protocol):
    """Where groups come from: live rollouts, or saved conversations.

    Attributes:
        position: how many tasks were taken so far; all that must be saved to go on from here.
    """

    position: int

    def feeding(self) -> AbstractAsyncContextManager[None]:
        """While open, groups may be taken."""
        ...

    async def take(self, policy_version: int) -> list[Group]:
        """The groups of one step."""
        ...


class AfterStep(Protocol):
    """Everything a person or a disk wants to know about a step."""

    async def begin(self) -> int:
        """Restore a saved run or start a new one; the step to go on from."""
        ...

    def finished(self, step: int) -> bool:
        """Whether the run ends here."""
        ...

    async def __call__(self, step: int, groups: Sequence[Group], stats: Metrics) -> None:
        """Step `step` is done."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run."""

    source: Source
    algorithm: Algorithm
    scorer: Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
    learner: Callable[[Sequence[Sample], int], Awaitable[Metrics]]
    publish: Callable[[int], Awaitable[None]]
    after_step: AfterStep
