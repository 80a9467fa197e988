"""A saved run: configuration, metrics, rollouts and checkpoints. Reading a run never executes code from its config."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agentrl.errors import DataError, install_command
from agentrl.replay.saved_run import SavedRun, open_saved
from agentrl.run_folder.checkpoints import CHECKPOINTS
from agentrl.store import StoredRollout
from agentrl.telemetry.jsonl import METRICS_FILE, read_metrics
from agentrl.types.messages import Message
from agentrl.utils.short_repr import counted, short

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

CONFIG_FILE = "config.yaml"
_STEP = re.compile(r"step-(\d+)")


class Metrics(list[dict[str, Any]]):  # Any: a number, or None if it was not finite
    """One dictionary per logged step, each with the key `step`."""

    def to_pandas(self) -> DataFrame:
        """Return a table with one row per step, indexed by `step`.

        Raises:
            DataError: pandas is not installed.
        """
        pandas = _library("pandas")
        frame: DataFrame = pandas.DataFrame([*self])
        return frame.set_index("step") if "step" in frame else frame

    def __repr__(self) -> str:
        return f"Metrics({counted(len(self), 'row')})"


class Run:
    """A saved run: its folder, or a folder or file that contains only rollouts.

    Attributes:
        path: the folder or file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> Mapping[str, Any]:  # Any: plain values of the configuration
        """The configuration as plain values, from config.yaml; without this file, from the saved rollouts.

        Raises:
            DataError: the configuration cannot be read.
        """
        file = self.path / CONFIG_FILE
        if not file.is_file():
            return self._saved(None).config
        try:
            config = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise DataError(f"'{file}' cannot be read: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(config, dict):
            raise DataError(f"'{file}' is not a configuration: expected a mapping of keys and values")
        return config

    @property
    def metrics(self) -> Metrics:
        """The rows of metrics.jsonl at this moment; empty if the file does not exist."""
        file = self.path / METRICS_FILE
        return Metrics(row for row in read_metrics(file) if isinstance(row, dict)) if file.is_file() else Metrics()

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Step -> folder of each checkpoint, oldest first."""
        folder = self.path / CHECKPOINTS
        found = {int(name[1]): path for path in folder.glob("step-*") if (name := _STEP.fullmatch(path.name))}
        return dict(sorted(found.items()))

    def rollouts(
        self, split: str | None = None, step: int | None = None, columns: Collection[str] | None = None
    ) -> Iterator[StoredRollout]:
        """Yield all saved rollouts of a split, in the order in which they were saved; files are read lazily.

        Args:
            split: `train` or `val`; by default `train` if it exists.
            step: only the rollouts of this step.
            columns: read only these columns, as in `TrajectoryStore.scan`.

        Raises:
            DataError: there are no rollouts, or a file cannot be read.
        """
        saved = self._saved(split)
        return saved.store.scan(steps=saved.steps if step is None else [step], columns=columns)

    def to_pandas(self, split: str | None = None) -> DataFrame:
        """Return a table with one row per rollout: step, uid, rewards, stop, turns, calls, tokens, prompt, answer.

        Raises:
            DataError: pandas is not installed, or a file cannot be read.
        """
        _library("pandas")
        import pyarrow as pa

        from agentrl.viewer.summary import SUMMARY, summarize

        saved = self._saved(split)
        files = dict.fromkeys(map(saved.store.file, saved.steps))
        tables = [SUMMARY.empty_table(), *(summarize(file, saved.split) for file in files)]
        frame: DataFrame = pa.concat_tables(tables, promote_options="default").to_pandas()
        texts = [
            (_last(one.task.messages, "user"), _last(_final(one), "assistant"))
            for one in saved.store.scan(columns=["messages", "trajectories.messages"])
        ]
        frame["prompt"], frame["answer"] = zip(*texts, strict=True) if texts else ((), ())
        return frame

    def to_dataset(self, split: str | None = None) -> Dataset:
        """Return every column of the saved rollouts as a `datasets.Dataset`, in memory.

        Raises:
            DataError: `datasets` is not installed, or a file cannot be read.
        """
        datasets = _library("datasets")
        from agentrl.store.files import read_without_maps

        saved = self._saved(split)
        tables = [read_without_maps(file) for file in dict.fromkeys(map(saved.store.file, saved.steps))]
        dataset: Dataset = datasets.concatenate_datasets([datasets.Dataset(table) for table in tables])
        return dataset

    def _saved(self, split: str | None) -> SavedRun:
        return open_saved(str(self.path), split)

    def __repr__(self) -> str:
        parts = counted(len(self.metrics), "row") + " of metrics", counted(len(self.checkpoints), "checkpoint")
        return f"Run({short(self.path, 60)}, {', '.join(parts)})"


def load(path: str | Path) -> Run:
    """Open a saved run: its folder, or a folder or file of rollouts. Code from the run's configuration is not executed.

        run = agentrl.load("outputs/quickstart/rl")
        run.metrics.to_pandas()["reward/mean"].plot()

    Raises:
        DataError: the path contains no files of a run.
    """
    folder = Path(path)
    if not any((folder / name).is_file() for name in (CONFIG_FILE, METRICS_FILE)):
        open_saved(str(folder))  # raises an error, unless the path contains rollouts
    return Run(folder)


def _final(stored: StoredRollout) -> list[Message]:
    trajectories = stored.rollout.trajectories
    return trajectories[-1].messages if trajectories else []


def _last(messages: Collection[Message], role: str) -> str:
    contents = [message.get("content") or "" for message in messages if message.get("role") == role]
    found = contents[-1] if contents else ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _library(name: str) -> Any:  # Any: a module
    try:
        return __import__(name)
    except ImportError as error:
        hint = install_command("datasets") if name == "datasets" else f"pip install {name}"
        raise DataError(f"{name} is not installed: {hint}") from error
