"""Trackers: receivers of a run's metrics, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from pydantic import JsonValue

from agentrl.errors import ConfigError, Kind, install_command
from agentrl.registry import Registry


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The run that a tracker logs.

    Attributes:
        folder: the run's folder, which already exists.
        project: the run's project, for trackers with projects.
        config: the complete configuration as plain values, without secrets.
        resumed_at: the step from which the run resumes; -1 for a new run. Trackers drop data of later steps.
    """

    folder: Path
    project: str = "agentrl"
    name: str = "default"
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    resumed_at: int = -1

    def kept_id(self, library: str, create: Callable[[], str]) -> str:
        """Return the run's id in `library`, saved in `<folder>/<library>_id`; a new run gets an id from `create`."""
        file = self.folder / f"{library}_id"
        if self.resumed_at < 0 or not file.exists():
            file.write_text(create())
        return file.read_text()


@dataclass(frozen=True, slots=True)
class Generation:
    """One validation rollout as text; `output` is all text after the prompt, including text of tools and users."""

    input: str
    output: str
    ground_truth: str
    score: float
    stop: str


def as_table(generations: Sequence[Generation]) -> tuple[list[str], list[list[str | float]]]:
    """Return (column names, one row per generation)."""
    return [column.name for column in fields(Generation)], [list(astuple(each)) for each in generations]


class Tracker(Protocol):
    """Receives the metrics of each step, once per step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Save the metrics of `step`; a value may be NaN."""
        ...

    def close(self) -> None:
        """Write buffered data and close the tracker."""
        ...


@runtime_checkable
class GenerationTracker(Protocol):
    """A tracker that also saves texts."""

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Save some rollouts of the validation after `step`; called before the `log` of that step."""
        ...


@runtime_checkable
class WarningTracker(Protocol):
    """A tracker that also shows warnings."""

    def log_warning(self, step: int, text: str) -> None:
        """Log a warning at `step`: one line, which may contain names written by a model or a user."""
        ...


TrackerFactory: TypeAlias = Callable[[TrackedRun], Tracker]

_OPTIONAL = ("wandb", "mlflow", "trackio")  # each tracker is named after its library
trackers: Registry[TrackerFactory] = Registry(
    "tracker", {name: f"agentrl.telemetry.{name}:open_tracker" for name in ("jsonl", "tensorboard", *_OPTIONAL)}
)


def check_installed(names: Iterable[str]) -> None:
    """Check that the libraries of these trackers are installed, without importing the libraries.

    Raises:
        ConfigError: a library is missing.
    """
    missing = [name for name in names if name in _OPTIONAL and find_spec(name) is None]
    if missing:
        raise ConfigError.at(
            "trainer.logger",
            Kind.NOT_FOUND,
            f"`trainer.logger` needs {', '.join(missing)}: {install_command('trackers')}",
        )
