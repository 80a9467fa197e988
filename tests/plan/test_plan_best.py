"""The best division fits, is accepted by the rules, and its keys change the configuration into it."""

from __future__ import annotations

import shlex

import pytest
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.plan.best import Best, best_json, best_lines, best_of
from agentrl.plan.counts import shape_of
from agentrl.plan.hardware import parse_fleet
from agentrl.plan.layout import layout_of, num_used, servers_of
from agentrl.plan.lengths import LengthsConfig, Spread
from agentrl.plan.memory.fit import GIB, fit_of

LENGTHS = LengthsConfig(turn_tokens=Spread(mean=600, p95=1500), max_tokens=3000)
SMALL = ("data.train_batch_size=16", "rollout.n=4", "actor.ppo_mini_batch_size=16")


def best(name: str, fleet: str, *overrides: str) -> Best:
    shape = shape_of(content_of(name))
    assert shape is not None
    config = compose_config([f"+experiment={name}", *SMALL, *overrides])
    return best_of(config, shape, parse_fleet(fleet), LENGTHS)


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


def test_what_does_not_fit_names_the_closest():
    (line,) = best_lines(best("deepseek_v3", "64xh100"), None)
    assert "no division of 64xH100 fits" in line


def test_no_division_is_praised_that_is_not_faster():
    found = best("qwen3_8b", "4xh100")
    assert "is faster than the configuration" in next(best_lines(found, found.found.ranked[0].step_s))
    assert found.keys(found.found.ranked[0]) in "\n".join(best_lines(found, 10 * found.found.ranked[0].step_s))


def test_json_has_every_division():
    found = best("qwen3_8b", "4xh100")
    rows = best_json(found)
    assert len(rows) == len(found.found.ranked)
    assert [row["step_s"] for row in rows] == [each.step_s for each in found.found.ranked]
