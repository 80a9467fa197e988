from __future__ import annotations

import pytest
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.plan.check import Phase, check_lines
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import load_hardware, parse_fleet
from agentrl.plan.layout import devices_of, layout_of, servers_of
from agentrl.plan.lengths import LengthsConfig, Spread
from agentrl.plan.shapes import Shape
from agentrl.plan.time.step import hourly_price, predict, publish_s
from agentrl.plan.times import times_of

ONE = ("actor.megatron.expert_tensor_parallel_size=1",)
LENGTHS = LengthsConfig(turn_tokens=Spread(mean=300, p95=900))


def config(*overrides: str) -> RunConfig:
    return compose_config(["+experiment=qwen3_30b_a3b", "data.train_batch_size=16", *overrides])


def shape() -> Shape:
    found = shape_of(content_of("qwen3_30b_a3b"))
    assert found is not None
    return found


@pytest.mark.slow
def test_the_experiment_uses_its_64_devices():
    answer = times_of(config(), shape(), parse_fleet("64xH100"), LENGTHS)
    assert answer.devices == "64xH100"
    assert answer.hourly == pytest.approx(64 * 3.0)
    assert answer.split.staleness == {0: 1.0}
    assert answer.phases.serial_s == pytest.approx(answer.split.step_s, rel=0.3)


@pytest.mark.slow
def test_staleness_hides_the_shorter_phase():
    alone, beside = (
        times_of(config(f"trainer.max_staleness={s}"), shape(), parse_fleet("64xH100"), LENGTHS).split.step_s
        for s in (0, 2)
    )
    assert beside < alone


def test_more_devices_than_the_fleet_has_are_refused():
    with pytest.raises(ConfigError):
        times_of(config(), shape(), parse_fleet("32xH100"), LENGTHS)


@pytest.mark.slow
def test_predict_adds_the_price_of_all_devices():
    hardware, of_run = load_hardware("h100"), config()
    found = predict(shape(), layout_of(of_run), hardware, LENGTHS, of_run)
    assert found.price == pytest.approx(64 * 3 * found.serial_s / 3600)
    assert found.bottleneck in {"rollout", "score", "learn", "publish"}
    assert found.sampled < found.tokens


def test_shared_devices_count_once():
    shared = config("rollout.sglang.colocate=true", "rollout.sglang.num_replicas=2", "trainer.nnodes=1", *ONE)
    assert devices_of(layout_of(shared), servers_of(shared)) == 8
    assert hourly_price(layout_of(shared), servers_of(shared), load_hardware("h20")) is None


def test_weights_pass_the_slowest_link_by_hand():
    of_run, hardware = config(), load_hardware("h100")
    seconds = publish_s(shape(), layout_of(of_run), servers_of(of_run), hardware, hardware)
    assert seconds == pytest.approx(2 * shape().weights.total / 50e9)


def test_check_prints_a_line_for_each_phase():
    lines = list(check_lines([Phase("step", 3.0, 2.0), Phase("learn", 1.0, 2.0)]))
    assert len(lines) == 3
    assert "+50%" in lines[1]
    assert "-50%" in lines[2]
