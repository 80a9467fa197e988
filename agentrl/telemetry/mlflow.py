"""MLflow tracker. MLflow's environment variables (MLFLOW_TRACKING_URI, …) set its storage."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import mlflow
from mlflow.entities import Metric, Param
from pydantic import JsonValue

from agentrl.telemetry.base import Generation, TrackedRun

_MAX_BATCH = 100  # parameters per call; mlflow's limit
_MAX_VALUE = 500  # characters; the smallest limit of mlflow's stores
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowTracker:
    """One run in mlflow's experiment `run.project`; a resumed run keeps its id."""

    def __init__(self, run: TrackedRun) -> None:
        self._client = mlflow.MlflowClient()
        self._run_id = run.kept_id("mlflow", lambda: self._create(run))
        self._client.update_run(self._run_id, status="RUNNING")
        self._client.log_dict(self._run_id, dict(run.config), "config.yaml")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log all metrics of a step in one call; characters that mlflow does not allow in names become underscores."""
        now_ms = round(time.time() * 1000)
        batch = [Metric(_NOT_IN_NAMES.sub("_", name), value, now_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=batch)

    def log_generations(self, step: int, generations: Sequence[Generation]) -> None:
        """Save the artifact `generations/step-N.json`."""
        text = json.dumps([asdict(each) for each in generations], indent=2)
        self._client.log_text(self._run_id, text, f"generations/step-{step}.json")

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run_id)

    def _create(self, run: TrackedRun) -> str:
        experiment = self._client.get_experiment_by_name(run.project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        run_id: str = self._client.create_run(experiment_id, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:_MAX_VALUE]) for name, value in _leaves(run.config)]
        for start in range(0, len(params), _MAX_BATCH):
            self._client.log_batch(run_id, params=params[start : start + _MAX_BATCH])
        return run_id


def _leaves(config: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in config.items():
        key = f"{prefix}{_NOT_IN_NAMES.sub('_', name)}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


open_tracker = MlflowTracker
