"""The search: the best split is the one that the simulation prefers, and what does not fit is left out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.config import RunConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import parse_fleet
from agentrl.plan.layout import Layout, Servers
from agentrl.plan.lengths import LengthsConfig, Spread
from agentrl.plan.shapes import Shape
from agentrl.plan.split.layouts import layouts_for, servers_for
from agentrl.plan.split.search import Found, Lack, search

LENGTHS = LengthsConfig(turn_tokens=Spread(mean=600, p95=1500), max_tokens=3000)
SMALL = ("+experiment=qwen3_30b_a3b", "data.train_batch_size=16", "rollout.n=4")


def shape(name: str) -> Shape:
    found = shape_of(content_of(name))
    assert found is not None
    return found


def config(*overrides: str) -> RunConfig:
    return compose_config([*SMALL, *overrides])


def fits(layout: Layout) -> Lack | None:
    return None if layout.expert * layout.tensor * layout.pipeline >= 8 else Lack(2.0, "weights and optimizer")


def kv_tokens(servers: Servers) -> float:
    return 200_000.0 * servers.tensor if servers.tensor >= 2 else 0.0


def found(fleet: str, *overrides: str) -> Found:
    return search(shape("qwen3_30b_a3b"), parse_fleet(fleet), LENGTHS, config(*overrides), fits, kv_tokens)


def test_all_devices_are_used_and_everything_fits():
    result = found("16xH100", "trainer.max_staleness=1")
    assert result.ranked
    for candidate in result.ranked:
        assert fits(candidate.layout) is None
        assert kv_tokens(candidate.servers) > 0
        shared = candidate.servers.colocate
        assert candidate.layout.devices + (0 if shared else candidate.servers.devices) == 16


def test_the_best_comes_first_and_the_others_say_why():
    result = found("32xH100", "trainer.max_staleness=1")
    simulated = [candidate for candidate in result.ranked if candidate.split]
    assert simulated
    assert simulated == sorted(simulated, key=lambda each: each.step_s) == result.ranked[: len(simulated)]
    best = result.ranked[0]
    assert best.split is not None
    assert best.price == pytest.approx(best.split.step_s / 3600 * 32 * 3.0)
    assert all(result.why_not(each) for each in result.ranked[1:])


def test_a_bound_is_below_the_simulated_step():
    for candidate in found("32xH100", "trainer.max_staleness=1").ranked:
        if candidate.split:
            assert candidate.bound_s <= candidate.split.step_s * 1.05


def test_sharing_devices_is_tried_on_one_node_without_staleness_only():
    assert any(each.servers.colocate for each in found("8xH100").ranked)
    assert not any(each.servers.colocate for each in found("8xH100", "trainer.max_staleness=1").ranked)
    assert not any(each.servers.colocate for each in found("16xH100").ranked)


def test_what_does_not_fit_is_named():
    def lacks(layout: Layout) -> Lack:
        return Lack(layout.pipeline, "no")

    result = search(shape("qwen3_30b_a3b"), parse_fleet("8xH100"), LENGTHS, config(), lacks, kv_tokens)
    assert result.ranked == []
    assert set(result.refused.values()) == {Lack(1, "no")}


@pytest.mark.parametrize("name", ["qwen3_8b", "qwen3_235b_a22b", "deepseek_v3"])
def test_layouts_divide_model_and_devices(name):
    of_model = shape(name)
    layouts = list(layouts_for(of_model, 64, 8, "megatron"))
    assert layouts
    for layout in layouts:
        assert layout.tensor <= 8
        assert layout.data_parallel * layout.tensor * layout.pipeline * layout.context == 64
        assert layout.expert_copies * layout.expert * layout.expert_tensor * layout.pipeline == 64
        assert sum(map(len, layout.stages(of_model.num_layers))) == of_model.num_layers
    assert len({replace(layout) for layout in layouts}) == len(layouts)


def test_layers_that_no_pipeline_divides_leave_the_last_stage_smaller():
    stages = {
        tuple(map(len, layout.stages(61)))
        for layout in layouts_for(shape("deepseek_v3"), 256, 8, "megatron")
        if layout.pipeline == 16
    }
    assert stages == {(4,) * 15 + (1,)}


def test_servers_use_all_devices():
    found = servers_for(shape("qwen3_8b"), 24, 8, colocate=False)
    sizes = [servers.tensor for servers in found if servers.data == 1]
    assert sizes == [1, 2, 4, 8]
    assert all(math.gcd(24, size) == size for size in sizes)
