"""The keys of a division are those with which a configuration has this division."""

from __future__ import annotations

import pytest
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.config.resolve import with_values
from agentrl.plan.counts import shape_of
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.split.keys import server_keys, training_keys
from agentrl.plan.split.layouts import layouts_for, servers_for


def divisions(name: str, devices: int, kind, number: int = 0):
    shape = shape_of(content_of(name))
    assert shape is not None
    layouts = list(layouts_for(shape, devices, 8, kind))[::3]
    servers = list(servers_for(shape, devices, 8, colocate=False, number=number))
    return [(layout, servers[number % len(servers)]) for number, layout in enumerate(layouts)]


@pytest.mark.parametrize(
    ("name", "devices", "kind"),
    [("qwen3_8b", 4, "fsdp"), ("qwen3_30b_a3b", 32, "megatron"), ("glm_4_5", 16, "megatron")],
)
def test_the_keys_make_the_division(name, devices, kind):
    config = compose_config([f"+experiment={name}"])
    for layout, servers in divisions(name, devices, kind, len(config.rollout.sglang.urls)):
        keys = training_keys(layout, config, 8) | server_keys(servers, config, layout, 8)
        changed = with_values(config, keys)
        assert layout_of(changed).devices == layout.devices
        assert layout_of(changed).context == layout.context
        assert layout_of(changed).stages(48) == layout.stages(48)
        assert (layout_of(changed).tensor, layout_of(changed).expert) == (layout.tensor, layout.expert)
        assert servers_of(changed).tensor == servers.tensor
        assert servers_of(changed).replicas == servers.replicas


def test_servers_of_one_node_start_behind_the_trainers():
    config = compose_config(["+experiment=qwen3_8b"])
    layout, servers = divisions("qwen3_8b", 4, "fsdp")[0]
    keys = training_keys(layout, config, 8) | server_keys(servers, config, layout, 8)
    assert with_values(config, keys).rollout.sglang.options["base_gpu_id"] == 4


def test_what_the_configuration_has_is_not_repeated():
    config = compose_config(["+experiment=qwen3_8b"])
    layout, servers = layout_of(config), servers_of(config)
    assert training_keys(layout, config, 8) | server_keys(servers, config, layout, 8) == {}
