"""The best division fits, is accepted by the rules, and its keys change the configuration into it."""

from __future__ import annotations

import shlex

import pytest
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.plan.best import Best, best_json, best_lines, best_of
from agentrl.plan.calibration import Calibration
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import GIB, parse_fleet
from agentrl.plan.layout import layout_of, num_used, servers_of
from agentrl.plan.lengths import LengthsConfig, Spread
from agentrl.plan.memory.fit import fit_of, room_for_kv
from agentrl.plan.times import times_of

LENGTHS = LengthsConfig(turn_tokens=Spread(mean=600, p95=1500), max_tokens=3000)
SMALL = ("data.train_batch_size=16", "rollout.n=4", "actor.ppo_mini_batch_size=16")


def best(name: str, fleet: str, *overrides: str) -> Best:
    shape = shape_of(content_of(name))
    assert shape is not None
    config = compose_config([f"+experiment={name}", *SMALL, *overrides])
    return best_of(config, shape, parse_fleet(fleet), LENGTHS)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "fleet"),
    [
        ("qwen3_8b", "8xh100"),
        ("qwen3_30b_a3b", "32xh100"),
        ("qwen3_30b_a3b", "8xh200"),
        pytest.param("deepseek_v3", "320xh100", marks=pytest.mark.slow),
    ],
)
def test_each_division_fits_and_its_keys_make_it(name, fleet):
    found, shape = best(name, fleet), shape_of(content_of(name))
    assert found.found.ranked
    for each in found.found.ranked:
        words = shlex.split(found.keys(each))
        config = compose_config([f"+experiment={name}", *SMALL, *words])
        layout, servers = layout_of(config), servers_of(config)
        assert (layout.devices, layout.context) == (each.layout.devices, each.layout.context)
        assert (layout.tensor, layout.pipeline, layout.expert) == (
            each.layout.tensor,
            each.layout.pipeline,
            each.layout.expert,
        )
        assert (servers.tensor, servers.data, servers.colocate) == (
            each.servers.tensor,
            each.servers.data,
            each.servers.colocate,
        )
        assert num_used(config) <= found.fleet.num_devices
        assert fit_of(config, shape, found.fleet.hardware.memory_gib * GIB).fits


@pytest.mark.slow
def test_what_does_not_fit_names_the_closest():
    found = best("deepseek_v3", "64xh100")
    (line,) = best_lines(found, None)
    assert "no division of 64xH100 fits" in line
    assert max(found.found.refused.values()).text not in line


def test_servers_without_room_are_named_where_the_trainer_fits():
    found = best("qwen3_8b", "8xh100", "rollout.sglang.server_args.mem_fraction_static=0.02")
    of_servers = {devices: lack for devices, lack in found.found.refused.items() if not lack.of_trainer}
    assert found.found.ranked == []
    assert of_servers
    (line,) = best_lines(found, None)
    assert min(of_servers.values()).text in line


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", [256, 200])
def test_servers_that_run_already_keep_their_number(devices):
    found = best("glm_4_5", f"{devices}xh100", "actor.ppo_mini_batch_size=16")
    assert found.found.ranked or devices == 200
    for each in found.found.ranked:
        config = compose_config(["+experiment=glm_4_5", *SMALL, *shlex.split(found.keys(each))])
        assert each.servers.replicas == servers_of(config).replicas == 4
        assert servers_of(config).devices == each.servers.devices


@pytest.mark.slow
def test_servers_of_running_addresses_share_no_devices():
    urls = ("rollout.engine=sglang", "rollout.sglang.urls=[http://a:1,http://b:1]", "model.dtype=bfloat16")
    config, shape = compose_config(["model.path=x", *SMALL, *urls]), shape_of(content_of("qwen3_8b"))
    assert shape is not None
    found = best_of(config, shape, parse_fleet("8xh100"), LENGTHS).found
    assert {(each.layout.devices, each.servers.replicas) for each in found.ranked} == {(4, 2), (6, 2)}
    assert not any(each.servers.colocate for each in found.ranked)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("measured_s", [None, 40.0])
def test_a_division_takes_the_time_that_its_keys_take(measured_s):
    name = "qwen3_8b"
    shape, config = shape_of(content_of(name)), compose_config([f"+experiment={name}", *SMALL])
    assert shape is not None
    fleet = parse_fleet("8xh100")
    calibration = Calibration(fleet.hardware, publish_s=measured_s, other_s=1.0)
    found = best_of(config, shape, fleet, LENGTHS, calibration)
    for each in (each for each in found.found.ranked if each.split):
        changed = compose_config([f"+experiment={name}", *SMALL, *shlex.split(found.keys(each))])
        room = room_for_kv(changed, shape, fleet.hardware.memory_gib * GIB)
        answer = times_of(changed, shape, fleet, LENGTHS, calibration=calibration, max_kv_tokens=room)
        assert answer.split.step_s == pytest.approx(each.step_s)
        assert answer.phases.publish_s == (measured_s or pytest.approx(0.04, abs=0.03))


@pytest.mark.slow
def test_no_division_is_praised_that_is_not_faster():
    found = best("qwen3_8b", "4xh100")
    first, *tried = best_lines(found, found.found.ranked[0].step_s)
    assert first.startswith("no division")
    assert len(tried) == len(found.found.ranked)
    assert all("than the configuration" in line or "as long as the configuration" in line for line in tried)
    assert found.keys(found.found.ranked[0]) in "\n".join(best_lines(found, 10 * found.found.ranked[0].step_s))


def test_json_has_every_division():
    found = best("qwen3_8b", "4xh100")
    rows = best_json(found)
    assert len(rows) == len(found.found.ranked)
    assert [row["step_s"] for row in rows] == [each.step_s for each in found.found.ranked]
