"""The tracker: something that is told a run's metrics, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run a tracker is told about.

    Attributes:
        folder: of the run; exists.
        project: what the run belongs to, where a tracker knows projects.
        config: the whole configuration as plain values, secrets taken out.
        resumed_at: the step the run goes on from, -1 for a new one; what a tracker kept of later steps is dropped.
    """

    folder: Path
    project: str = "agentrl"
    name: str = "default"
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    resumed_at: int = -1

    def kept_id(self, library: str, create: Callable[[], str]) -> str:
        """The id this run has in `library`, kept in `<folder>/<library>_id`; a new run is given a new one."""
        file = self.folder / f"{library}_id"
        if self.resumed_at < 0 or not file.exists():
            file.write_text(create())
        return file.read_text()


@dataclass(frozen=True, slots=True)
class Generation:
    """One validation sample as text: `output` is all that was said after the prompt, tools and users included."""

    input: str
    output: str
    ground_truth: str
    score: float
    stop: str


def as_table(generations: Sequence[Generation]) -> tuple[list[str], list[list[str | float]]]:
    """(names of the columns, one row a generation)."""
    return [column.name for column in fields(Generation)], [list(astuple(each)) for each in generations]


class Tracker(Protocol):
    """Is told the metrics of each step, once a step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of `step`; a value may be NaN."""
        ...

    def close(self) -> None:
        """Write what is still held back."""
        ...


@runtime_checkable
class GenerationTracker(Protocol):
    """A tracker that can also keep texts."""

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Keep samples of the validation after `step`; called before the `log` of that step."""
        ...


@runtime_checkable
class WarningTracker(Protocol):
    """A tracker that can also warn."""

    def log_warning(self, step: int, text: str) -> None:
        """Say that something looks wrong at `step`: one line, which may hold names a model or a user wrote."""
        ...


TrackerFactory: TypeAlias = Callable[[TrackedRun], Tracker]

_OPTIONAL = ("wandb", "mlflow", "trackio")  # each tracker is named after its library
trackers: Registry[TrackerFactory] = Registry(
    "tracker", {name: f"agentrl.telemetry.{name}:open_tracker" for name in ("jsonl", "tensorboard", *_OPTIONAL)}
)


def check_installed(names: Iterable[str]) -> None:
    """Look for the libraries those trackers need, without importing them.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in names if name in _OPTIONAL and find_spec(name) is None]
    if missing:
        raise ConfigError(f"'trainer.logger' needs {', '.join(missing)}: pip install 'agentrl[trackers]'")
