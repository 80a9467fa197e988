"""Protocols of the training loop's components; `trainer/builders` chooses the concrete classes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from agentrl.algos.base import Algorithm
from agentrl.backends.base import Backend
from agentrl.data.order import Draw
from agentrl.run_folder.checkpoints import Best
from agentrl.telemetry.timing import Timer
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

Metrics = dict[str, float]
Learn = Callable[[Sequence[Sample], int], Awaitable[Metrics]]
"""Learns from a step's samples (with advantages); the second argument is the policy version at the step's start."""
Publish = Callable[[int], Awaitable[None]]
"""Sends the policy's weights to the engine, as the given policy version."""
SaveModel = Callable[[Backend, Path], Awaitable[None]]
"""Saves a model to a folder; with `trainer.async_save`, in the background."""
P = ParamSpec("P")
R = TypeVar("R")


class Source(Protocol):
    """Source of groups: live rollouts, saved conversations or stored rollouts.

    Attributes:
        position: number of tasks (or stored steps) drawn so far.
        pending: drawn tasks that no step has used yet; a resumed run uses them first. `position` and `pending`
            are the complete state for resuming.
    """

    position: int
    pending: Sequence[Draw]

    def feeding(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager; `take` works only inside its `async with` block."""
        ...

    async def take(self, policy_version: int) -> list[Group]:
        """Return the groups of the step that starts at `policy_version`."""
        ...

    @property
    def live(self) -> bool:
        """Whether groups are sampled during the run. If so, the engine needs the new weights after each step."""
        ...

    def metrics(self) -> Metrics:
        """Return metrics of the groups that the last `take` returned."""
        ...

    def published(self, version: int) -> None:
        """Record that the engine now samples with the weights of `version`."""
        ...


class Progress(Protocol):
    """Saved progress of a run, for resuming.

    Attributes:
        best: the best saved step by the metric of `trainer.save_best`; None if there is none.
    """

    best: Best | None

    @property
    def goal(self) -> Best | None:
        """The value of the `trainer.stop_when` metric at the last saved validation."""
        ...

    @property
    def latest_step(self) -> int | None:
        """The last saved step; None if nothing is saved."""
        ...

    async def save(self, step: int, best: Best | None = None, goal: Best | None = None) -> None:
        """Save the run after `step`. `best` is given if this step is the best so far. For `goal`, see the property."""
        ...

    def check(self) -> None:
        """Raise an error if a save in the background has failed."""
        ...

    async def finish(self) -> None:
        """Wait for a save in the background; raise an error if the save fails."""
        ...

    async def restore(self) -> None:
        """Restore the run from the last saved step, if there is one. Called before any record of the run changes."""
        ...


class Checkpointable(Protocol):
    """A component whose state changes during a run and is saved in checkpoints."""

    async def save(self, checkpoint: Path, save_model: SaveModel) -> None:
        """Write the state that changed since the start of the run into the folder `checkpoint`.

        A component with a model saves the model with `save_model`.
        """
        ...

    async def load(self, checkpoint: Path) -> None:
        """Restore the state from the folder `checkpoint`. State that is not saved there keeps its initial value."""
        ...


class AfterStep(Protocol):
    """Logging, storing, validating and saving after a step."""

    async def begin(self) -> int:
        """Start a new run or continue a restored run; return the number of the last finished step, or 0."""
        ...

    def finished(self, step: int) -> bool:
        """Return whether the run ends after `step`."""
        ...

    async def __call__(self, step: int, groups: Sequence[Group], samples: Sequence[Sample], stats: Metrics) -> None:
        """Process the finished step `step`; `samples` are the samples of `groups`, with advantages."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The components of the training loop."""

    source: Source
    algorithm: Algorithm
    scorer: Callable[[Sequence[Sample]], Awaitable[list[Sample]]]
    learner: Learn
    publish: Publish
    after_step: AfterStep


def timed(timer: Timer, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Wrap `part` so that its duration is measured as `timing_s/<name>`."""

    async def counted(*args: P.args, **kwargs: P.kwargs) -> R:
        with timer.timed(name):
            return await part(*args, **kwargs)

    return counted
