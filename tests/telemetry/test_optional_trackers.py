"""wandb, mlflow and trackio: calls to stand-ins for them; `pytest -m trackers` uses the real libraries."""

from __future__ import annotations

import importlib
import json
import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from agentrl.errors import ConfigError
from agentrl.telemetry.base import (
    Generation,
    GenerationTracker,
    TrackedRun,
    WarningTracker,
    check_installed,
    trackers,
)

SAMPLE = Generation("1+1?", "2", "2", 1.0, "finished")
CONFIG = {"trainer": {"seed": 0, "logger": ["wandb"]}, "reward": {"name": "auto (x)"}}


@pytest.fixture
def library(monkeypatch):
    """A stand-in for a library; the tracker's module is imported again with it, and removed afterwards."""

    def install(name, *submodules):
        stand_ins = {path: ModuleType(path) for path in (name, *submodules)}
        for path, module in stand_ins.items():
            module.__spec__ = ModuleSpec(path, None)
            monkeypatch.setitem(sys.modules, path, module)
        monkeypatch.delitem(sys.modules, f"agentrl.telemetry.{name}", raising=False)
        return SimpleNamespace(
            **{path.rpartition(".")[2]: module for path, module in stand_ins.items()},
            open=lambda run: importlib.import_module(f"agentrl.telemetry.{name}").open_tracker(run),
        )

    yield install
    for name in ("wandb", "mlflow", "trackio"):
        sys.modules.pop(f"agentrl.telemetry.{name}", None)


def tell(tracker):
    tracker.log_generations(2, [SAMPLE])
    tracker.log(2, {"reward/mean": 0.5, "success/a (b)": 1.0})
    tracker.close()


@pytest.fixture
def wandb(library):
    installed = library("wandb")
    wandb = installed.wandb
    wandb.init, wandb.Error, wandb.Settings = MagicMock(), type("Error", (Exception,), {}), dict
    wandb.Table = lambda columns, data: (columns, data)
    return SimpleNamespace(module=wandb, open=installed.open)


def test_wandb_logs_everything_and_a_resumed_run_keeps_its_id(wandb, tmp_path):
    tell(wandb.open(TrackedRun(tmp_path, "project", "name", CONFIG)))
    (started,) = [call.kwargs for call in wandb.module.init.mock_calls if "project" in call.kwargs]
    assert (started["project"], started["name"], started["config"]) == ("project", "name", CONFIG)
    assert (started["dir"], started["resume"]) == (str(tmp_path), "allow")
    run = wandb.module.init.return_value
    table = (["input", "output", "ground_truth", "score", "stop"], [["1+1?", "2", "2", 1.0, "finished"]])
    assert [call.args[0] for call in run.log.mock_calls] == [
        {"val/generations": table, "step": 2},
        {"reward/mean": 0.5, "success/a (b)": 1.0, "step": 2},
    ]
    run.define_metric.assert_called_once_with("*", step_metric="step")
    run.finish.assert_called_once_with()

    for resumed_at in (2, -1):
        wandb.open(TrackedRun(tmp_path, resumed_at=resumed_at))
    ids = [call.kwargs["id"] for call in wandb.module.init.mock_calls if "project" in call.kwargs]
    assert ids[0] == ids[1] != ids[2]


def test_wandb_without_a_key_is_a_one_line_error(wandb, tmp_path):
    wandb.module.init.side_effect = wandb.module.Error("no key:\n  log in first")
    with pytest.raises(ConfigError, match=r"wandb cannot start: no key: log in first$"):
        wandb.open(TrackedRun(tmp_path))


def test_warnings_are_sent_as_wandb_alerts(wandb, tmp_path):
    tracker = wandb.open(TrackedRun(tmp_path))
    assert isinstance(tracker, WarningTracker)
    tracker.log_warning(3, "all is lost")
    wandb.module.init.return_value.alert.assert_called_once_with(title="step 3", text="all is lost")


def test_mlflow_logs_everything_and_a_resumed_run_keeps_its_id(library, tmp_path):
    installed = library("mlflow", "mlflow.entities")
    client = MagicMock()
    installed.mlflow.MlflowClient = lambda: client
    installed.entities.Metric = installed.entities.Param = lambda *values: values
    client.get_experiment_by_name.return_value = None
    client.create_run.return_value.info.run_id = "run-1"
    tell(installed.open(TrackedRun(tmp_path, "project", "name", CONFIG)))
    client.create_experiment.assert_called_once_with("project")
    client.create_run.assert_called_once_with(client.create_experiment.return_value, run_name="name")
    parameters, metrics = [call.kwargs for call in client.log_batch.mock_calls]
    assert parameters["params"] == [
        ("trainer.seed", "0"),
        ("trainer.logger", "['wandb']"),
        ("reward.name", "auto (x)"),
    ]
    assert [(name, value, step) for name, value, _, step in metrics["metrics"]] == [
        ("reward/mean", 0.5, 2),
        ("success/a _b_", 1.0, 2),
    ]
    client.log_dict.assert_called_once_with("run-1", CONFIG, "config.yaml")
    (_, text, name) = client.log_text.call_args.args
    assert (json.loads(text)[0]["output"], name) == ("2", "generations/step-2.json")
    client.set_terminated.assert_called_once_with("run-1")

    client.reset_mock()
    installed.open(TrackedRun(tmp_path, "project", "name", CONFIG, resumed_at=2))
    client.create_run.assert_not_called()
    client.update_run.assert_called_once_with("run-1", status="RUNNING")


def test_trackio_logs_everything(library, tmp_path):
    installed = library("trackio")
    installed.trackio.init, installed.trackio.Table = MagicMock(), lambda columns, data: (columns, data)
    tell(installed.open(TrackedRun(tmp_path, "project", "name", CONFIG)))
    installed.open(TrackedRun(tmp_path, "project", "name", CONFIG, resumed_at=2))
    started = [call.kwargs for call in installed.trackio.init.mock_calls if "project" in call.kwargs]
    assert [(each["project"], each["name"], each["resume"]) for each in started] == [
        ("project", "name", "never"),
        ("project", "name", "allow"),
    ]
    run = installed.trackio.init.return_value
    assert [call.kwargs["step"] for call in run.log.mock_calls] == [2, 2]
    assert run.log.mock_calls[1].args == ({"reward/mean": 0.5, "success/a (b)": 1.0},)
    run.finish.assert_called_once_with()


def test_missing_library_is_named_with_its_extra(monkeypatch, library):
    library("wandb")
    monkeypatch.setattr(sys, "path", [])  # no other library can be found
    for name in ("mlflow", "trackio"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    check_installed(["console", "jsonl", "tensorboard", "wandb"])
    with pytest.raises(ConfigError, match=r"needs mlflow, trackio: pip install 'agentrl-train\[trackers\]'"):
        check_installed(["mlflow", "wandb", "trackio"])


@pytest.mark.trackers
@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
@pytest.mark.filterwarnings("default")  # a warning of the library itself
def test_the_real_library_takes_it_offline_also_after_a_resume(name, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    for resumed_at in (-1, 2):
        tracker = trackers.get(name)(TrackedRun(tmp_path, "project", "name", CONFIG, resumed_at))
        assert isinstance(tracker, GenerationTracker)
        tracker.log(1, {"bad": math.nan})
        tell(tracker)
    if name == "mlflow":
        from mlflow import MlflowClient

        (history,) = [MlflowClient().get_metric_history((tmp_path / "mlflow_id").read_text(), "reward/mean")]
        assert [(point.step, point.value) for point in history] == [(2, 0.5), (2, 0.5)]
    elif name == "wandb":
        assert (tmp_path / "wandb_id").read_text() in " ".join(path.name for path in (tmp_path / "wandb").iterdir())
    else:
        assert (tmp_path / "trackio/project.db").exists()
