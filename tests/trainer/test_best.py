"""The best step is saved, linked and reported, also after a resume; a metric that no validation has is refused."""

from __future__ import annotations

import asyncio
import math

import pytest

from agentrl.config import validate_config
from agentrl.errors import ConfigError
from agentrl.reporting.health.monitor import Health
from agentrl.run_folder.checkpoints import read_best, read_state
from agentrl.telemetry.timing import Timer
from agentrl.trainer.after_step import AfterStep
from agentrl.trainer.checkpointing import Checkpoints, open_checkpoints
from agentrl.trainer.profiling import StepProfiler
from agentrl.trainer.protocols import Best
from agentrl.trainer.records import Records
from agentrl.trainer.sources.live import StoredSource
from agentrl.trainer.validator import check_metric, metric_value

NAME = "val/success"


class FileBackend:
    """Its weights are a number."""

    def __init__(self):
        self.weights = 0

    async def save(self, path):
        path.mkdir()
        (path / "weights").write_text(str(self.weights))

    async def load(self, path):
        self.weights = int((path / "weights").read_text())


async def publish(version):
    pass


def play(run_dir, values, num_steps=None, **trainer):
    """A run whose validations return `values`, one per step from the resumed step on; returns the saved steps."""
    settings = {
        "save_best": NAME,
        "test_freq": 1,
        "default_local_dir": run_dir,
        "max_checkpoints_to_keep": None,
    } | trainer
    config = validate_config({"model": {"path": "m"}, "data": {"val_files": ["v"]}, "trainer": settings})
    backend, said = FileBackend(), iter(values)

    async def validate(step):
        return {NAME: next(said)}, []

    progress = open_checkpoints(config.trainer, backend, StoredSource(lambda step: [], ()))
    records = Records([], Health(), 0, str)
    total = num_steps or len(values) - 1
    after = AfterStep(config, total, progress, publish, validate, records, Timer(), StepProfiler(run_dir, ()))

    async def steps():
        await progress.restore()
        step = await after.begin()
        while not after.finished(step):
            step += 1
            backend.weights = step
            await after(step, [], [], {})

    asyncio.run(steps())


def weights(run_dir, link):
    return int((run_dir / "checkpoints" / link / "weights").read_text())


def saved(run_dir):
    return sorted(int(path.name.split("-")[1]) for path in (run_dir / "checkpoints").glob("step-*"))


def test_the_best_step_so_far_is_saved_and_linked(tmp_path, capsys):
    play(tmp_path, [0.25, 0.5, 0.5, math.nan, 0.75, 0.5])
    assert saved(tmp_path) == [0, 1, 4, 5]  # each step that was better than all before, and the last step
    assert (weights(tmp_path, "best"), weights(tmp_path, "latest")) == (4, 5)
    assert read_best(tmp_path) == Best(NAME, 0.75, 4)
    assert (
        capsys.readouterr().out.splitlines()[-1] == "best so far: val/success 0.75 at step 4; saved as checkpoints/best"
    )


def test_the_best_value_survives_a_resume(tmp_path):
    play(tmp_path, [0.25, 0.5, 0.4])
    play(tmp_path, [0.3, 0.45], num_steps=4)
    assert weights(tmp_path, "best") == 1
    play(tmp_path, [0.3, 0.6, 0.5], num_steps=7)
    assert (weights(tmp_path, "best"), weights(tmp_path, "latest")) == (6, 7)


def test_another_metric_resets_the_best_value(tmp_path):
    play(tmp_path, [0.25, 0.5])
    state = tmp_path / "checkpoints/latest/run_state.json"
    state.write_text(state.read_text().replace(NAME, "val/reward/mean"))
    play(tmp_path, [0.1], num_steps=2)
    assert weights(tmp_path, "best") == 2


def test_a_best_first_step_is_not_validated_again_on_resume(tmp_path, capsys):
    with pytest.raises(RuntimeError, match="StopIteration"):
        play(tmp_path, [0.5], num_steps=2)  # ends before the validation of step 1
    play(tmp_path, [0.25, 0.125], num_steps=2)
    assert "resuming at step 0" in capsys.readouterr().out
    assert weights(tmp_path, "best") == 0


def test_a_resumed_step_may_become_the_best(tmp_path):
    play(tmp_path, [0.25, 0.5], save_best=None)
    goal = {"metric": NAME, "at_least": 0.9}  # the goal is checked before resuming
    play(tmp_path, [0.75, 0.5], num_steps=2, stop_when=goal)
    assert read_best(tmp_path) == Best(NAME, 0.75, 1)
    assert (weights(tmp_path, "best"), weights(tmp_path, "latest")) == (1, 2)


def test_a_kill_between_the_links_leaves_no_stale_best(tmp_path, monkeypatch):
    point, calls = Checkpoints._point, []

    def killed(self, name, step):
        calls.append(name)
        if len(calls) == 4:  # the second link of step 1
            raise KeyboardInterrupt
        point(self, name, step)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "_point", killed)
        with pytest.raises(KeyboardInterrupt):
            play(tmp_path, [0.25, 0.5, 0.1])
    play(tmp_path, [0.1], num_steps=2)  # resumes from step 1, whose checkpoint was complete
    assert read_best(tmp_path) == Best(NAME, 0.5, 1)
    assert weights(tmp_path, "latest") == 2


@pytest.mark.parametrize("save_best", [NAME, None])
def test_goal_met_before_the_first_step_saves_a_checkpoint(tmp_path, save_best):
    goal = {"metric": NAME, "at_least": 0.5}
    play(tmp_path, [0.5], num_steps=2, stop_when=goal, save_best=save_best)
    assert saved(tmp_path) == [0]
    assert weights(tmp_path, "latest") == 0


def test_a_missing_latest_step_does_not_restart_the_run(tmp_path):
    play(tmp_path, [0.25, 0.5], save_best=None)
    (tmp_path / "checkpoints/step-1").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"'step-1', which is missing or incomplete, .* restore it"):
        play(tmp_path, [0.25, 0.5], save_best=None)


def test_without_save_best_there_is_no_link(tmp_path):
    play(tmp_path, [0.25, 0.5], save_best=None)
    assert saved(tmp_path) == [1]
    assert read_best(tmp_path) is None


def test_a_checkpoint_without_its_state_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot resume from '.*step-1'.*run_state\.json"):
        read_state(tmp_path / "step-1")
    (tmp_path / "run_state.json").write_text('{"step": 3}')
    with pytest.raises(ConfigError, match="position"):
        read_state(tmp_path)


@pytest.mark.parametrize(
    "metric",
    [NAME, "val/success/gsm8k", "val/reward/mean", "val/reward/format", "val/tool/search/ok", "val/num_tasks"],
)
def test_metrics_that_a_validation_has_pass(metric):
    check_metric("trainer.save_best", metric, ["gsm8k"], ["search"])


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("success", "val/success"),
        ("val/sucess", "val/success"),
        ("val/success/gsm8", "val/success/gsm8k"),
        ("val/tool/serch/ok", "val/tool/search/ok"),
        ("actor/loss", "valid: "),
    ],
)
def test_other_metrics_are_refused_with_the_nearest(metric, hint):
    with pytest.raises(ConfigError, match=rf"'trainer\.save_best': validation has no '{metric}'.*{hint}"):
        check_metric("trainer.save_best", metric, ["gsm8k"], ["search"])


def test_reward_parts_are_known_at_the_first_validation():
    with pytest.raises(ConfigError, match="did you mean 'val/reward/format'"):
        metric_value("trainer.save_best", "val/reward/formt", {"val/reward/format": 1.0})
    assert math.isnan(metric_value("trainer.save_best", "val/tool/search/ok", {}))
