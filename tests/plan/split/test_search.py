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
from agentrl.plan.split.candidates import Found, Lack
from agentrl.plan.split.layouts import layouts_for, servers_for
from agentrl.plan.split.search import search
from agentrl.plan.time.sampling import sampling_of

LENGTHS = LengthsConfig(turn_tokens=Spread(mean=600, p95=1500), max_tokens=3000)
SMALL = ("+experiment=qwen3_30b_a3b", "data.train_batch_size=16", "rollout.n=4")


def shape(name: str) -> Shape:
    found = shape_of(content_of(name))
    assert found is not None
    return found


def config(*overrides: str) -> RunConfig:
    return compose_config([*SMALL, *overrides])


def fits(layout: Layout) -> Lack | None:
    return None if layout.expert * layout.tensor * layout.pipeline >= 8 else Lack(True, 2.0, "weights and optimizer")


def serves(servers: Servers) -> float | Lack:
    return 200_000.0 * servers.tensor if servers.tensor >= 2 else Lack(False, 3.0, "weights")


def together(layout: Layout, servers: Servers) -> float | str:
    return 200_000.0 * servers.tensor / servers.data


def found(fleet: str, *overrides: str) -> Found:
    return search(shape("qwen3_30b_a3b"), parse_fleet(fleet), LENGTHS, config(*overrides), fits, serves, together)


@pytest.mark.slow
def test_all_devices_are_used_and_everything_fits():
    result = found("16xH100", "trainer.max_staleness=1")
    assert result.ranked
    for candidate in result.ranked:
        assert fits(candidate.layout) is None
        assert not isinstance(serves(candidate.servers), Lack)
        shared = candidate.servers.colocate
        assert candidate.layout.devices + (0 if shared else candidate.servers.devices) == 16


@pytest.mark.slow
def test_the_best_comes_first_and_the_others_say_why():
    result = found("32xH100", "trainer.max_staleness=1")
    simulated = [candidate for candidate in result.ranked if candidate.split]
    assert simulated
    assert simulated == sorted(simulated, key=lambda each: each.step_s) == result.ranked[: len(simulated)]
    best = result.ranked[0]
    assert best.split is not None
    assert best.price == pytest.approx(best.split.step_s / 3600 * 32 * 3.0)
    assert all(result.why_not(each) for each in result.ranked[1:])


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("key", ["trainer.max_staleness=1", "trainer.over_sampling=1.0"])
def test_a_bound_is_below_the_simulated_step(key):
    for candidate in found("32xH100", key).ranked:
        if candidate.split:
            assert candidate.bound_s <= candidate.split.step_s * 1.05


@pytest.mark.slow
def test_with_over_sampling_training_and_rollouts_overlap():
    assert all(
        each.bound_s == max(each.train_s, each.rollout_s)
        for each in found("32xH100", "trainer.over_sampling=1.0").ranked
    )
    assert not any(each.servers.colocate for each in found("8xH100", "trainer.over_sampling=1.0").ranked)


@pytest.mark.slow
def test_the_next_servers_and_layouts_are_tried_if_the_rules_refuse_the_fastest():
    fastest = found("16xH100").ranked[0]

    def not_the_fastest(layout: Layout, servers: Servers) -> float | str:
        return "refused" if layout == fastest.layout else together(layout, servers)

    def other_servers(layout: Layout, servers: Servers) -> float | str:
        return "refused" if servers == fastest.servers else together(layout, servers)

    for checks in (not_the_fastest, other_servers):
        result = search(shape("qwen3_30b_a3b"), parse_fleet("16xH100"), LENGTHS, config(), fits, serves, checks)
        (other,) = (each for each in result.ranked if each.layout.devices == fastest.layout.devices)
        assert (other.layout == fastest.layout) == (checks is other_servers)
        assert (other.servers == fastest.servers) == (checks is not_the_fastest)


def test_what_is_refused_together_is_named():
    def refused(layout: Layout, servers: Servers) -> str:
        return "refused"

    result = search(shape("qwen3_30b_a3b"), parse_fleet("16xH100"), LENGTHS, config(), fits, serves, refused)
    assert result.ranked == []
    assert set(result.refused.values()) == {Lack(False, 1.0, "refused")}


def test_servers_are_closest_where_only_they_lack():
    def never(servers: Servers) -> Lack:
        return Lack(False, 5.0 / servers.tensor, "weights")

    result = search(shape("qwen3_30b_a3b"), parse_fleet("16xH100"), LENGTHS, config(), fits, never, together)
    assert set(result.refused.values()) == {Lack(False, 5.0 / 8, "weights")}


@pytest.mark.slow
def test_fewer_rollouts_than_servers_take_time():
    result = found("64xH100", "data.train_batch_size=2", "rollout.n=2", "actor.ppo_mini_batch_size=2")
    assert any(each.servers.replicas > 4 for each in result.ranked)
    assert all(each.rollout_s >= each_decode_s(each.servers) for each in result.ranked)


def each_decode_s(servers: Servers) -> float:
    """Seconds of the mean number of tokens of one rollout, one request at a time."""
    of_model = shape("qwen3_30b_a3b")
    return 500 * sampling_of(config(), of_model, servers, parse_fleet("1xH100").hardware).decode_s(1, 1)


@pytest.mark.slow
def test_sharing_devices_is_tried_on_one_node_without_staleness_only():
    assert any(each.servers.colocate for each in found("8xH100").ranked)
    assert not any(each.servers.colocate for each in found("8xH100", "trainer.max_staleness=1").ranked)
    assert not any(each.servers.colocate for each in found("16xH100").ranked)


def test_what_does_not_fit_is_named():
    def lacks(layout: Layout) -> Lack:
        return Lack(True, layout.pipeline, "no")

    result = search(shape("qwen3_30b_a3b"), parse_fleet("8xH100"), LENGTHS, config(), lacks, serves, together)
    assert result.ranked == []
    assert set(result.refused.values()) == {Lack(True, 1, "no")}


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
