"""Figures fitted to a run meet that run, and predictions for another layout follow from them."""

from __future__ import annotations

import pytest
from large_models import shape_of as content_of
from planned_run import TOOL_S, saved_run

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.errors import DataError
from agentrl.plan.calibration import _solved, calibrate
from agentrl.plan.check import check
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import load_hardware
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.measured import read_run
from agentrl.plan.shapes import Shape
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import Instant, samples_of, setting_of
from agentrl.plan.time.training import Training

CPU = load_hardware("cpu")


def config(*overrides: str) -> RunConfig:
    sizes = ("data.train_batch_size=2", "rollout.n=2", "data.train_files=[x.jsonl]", "model.path=x")
    return compose_config(["+experiment=calculator", *sizes, "data.val_files=[]", *overrides])


def shape() -> Shape:
    found = shape_of(content_of("qwen3_8b"))
    assert found is not None
    return found


@pytest.mark.slow
def test_the_fitted_trainer_takes_the_measured_time(tmp_path):
    measured = read_run(str(saved_run(tmp_path, learn=900.0, collect=700.0, step=1605.0, publish=2.0)))
    fitted = calibrate(measured, shape(), CPU, config())
    trainer = Training(shape(), layout_of(config()), fitted.trainer, passes_of(config()))
    assert trainer.learn_s(samples_of(measured.lengths, config(), 0)) == pytest.approx(900, rel=0.01)
    assert (fitted.publish_s, fitted.other_s) == (2.0, pytest.approx(3.0))


@pytest.mark.slow
def test_the_fitted_engine_takes_the_measured_time_besides_the_tools(tmp_path):
    measured = read_run(str(saved_run(tmp_path, learn=900.0, collect=700.0)))
    fitted, servers = calibrate(measured, shape(), CPU, config()), servers_of(config())
    engine = fitted.engine(sampling_of(config(), shape(), servers, CPU))
    split = simulate(measured.lengths, engine, Instant(), setting_of(config(), servers), 2)
    assert split.step_s == pytest.approx(700, rel=0.01)
    assert split.engine_idle == pytest.approx(TOOL_S / 700, rel=0.05)


def test_two_processes_follow_from_one(tmp_path):
    measured = read_run(str(saved_run(tmp_path, learn=900.0)))
    fitted, two = calibrate(measured, shape(), CPU, config()), config("trainer.n_gpus_per_node=2")
    trainer = Training(shape(), layout_of(two), fitted.trainer, passes_of(two))
    assert 450 < trainer.learn_s(samples_of(measured.lengths, two, 0)) < 700


def test_a_run_without_times_is_refused(tmp_path):
    measured = read_run(str(saved_run(tmp_path, num_steps=1, learn=1.0)))
    with pytest.raises(DataError):
        calibrate(measured, shape(), CPU, config())


def test_check_lists_the_phases_that_were_measured_longest_first(tmp_path):
    measured = read_run(str(saved_run(tmp_path, learn=900.0, collect=700.0, step=1700.0, publish=2.0)))
    phases = check(measured, shape(), CPU, config())
    assert [phase.name for phase in phases] == ["step", "learn", "collect", "publish"]
    assert all(phase.predicted_s > 0 for phase in phases)
    learn = phases[1]
    assert learn.off == pytest.approx(learn.predicted_s / 900 - 1)


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0, 900.0])
def test_the_factor_is_searched_from_1_outwards(factor):
    asked: list[float] = []

    def seconds_of(tried: float) -> float:
        asked.append(tried)
        return tried

    assert _solved(seconds_of, factor) == pytest.approx(factor, rel=1e-4)
    assert min(factor, 1) / 4 <= min(asked) <= max(asked) <= max(factor, 1) * 4
    assert _solved(lambda _: 1.0, 5.0) == 1.0  # no factor changes it
