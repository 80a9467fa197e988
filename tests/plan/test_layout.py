from __future__ import annotations

import pytest
from large_models import PUBLISHED, config_of
from large_models import shape_of as content_of

from agentrl.cli.compose import compose_config
from agentrl.config.megatron import MegatronConfig
from agentrl.errors import ConfigError
from agentrl.plan.layout import Layout, layout_of, servers_of

MODEL = "model.path=Qwen/Qwen3-8B"


def composed(*overrides: str):
    return compose_config([MODEL, *overrides])


def test_one_process_holds_a_complete_model():
    assert layout_of(composed()) == Layout(backend="torch")


def test_several_processes_shard_one_copy_or_several():
    assert layout_of(composed("trainer.n_gpus_per_node=8")).fsdp_size == 8
    found = layout_of(
        composed("trainer.n_gpus_per_node=8", "actor.fsdp_size=4", "actor.ulysses_sequence_parallel_size=2")
    )
    assert (found.backend, found.devices, found.fsdp_size, found.context, found.data_parallel) == ("fsdp", 8, 4, 2, 4)


def test_sizes_of_megatron():
    found = layout_of(config_of("qwen3_235b_a22b"))
    assert (found.tensor, found.pipeline, found.context, found.expert, found.expert_tensor) == (4, 4, 2, 32, 1)
    assert (found.devices, found.data_parallel, found.dense_copies, found.expert_copies) == (128, 4, 8, 1)
    assert found.sequence_parallel


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_layer_is_on_one_stage(name):
    number = content_of(name)["num_hidden_layers"]
    stages = layout_of(config_of(name)).stages(number)
    assert sorted(layer for stage in stages for layer in stage) == [*range(number)]


def test_stages_with_numbers_of_their_own():
    stages = layout_of(config_of("deepseek_v3")).stages(61)
    assert [len(stage) for stage in stages] == [4, *[4] * 14, 1]


def test_interleaved_stages_have_layers_of_every_part():
    sizes = MegatronConfig(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    stages = Layout(backend="megatron", devices=2, megatron=sizes).stages(8)
    assert stages == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_the_embedded_engine_shares_the_device():
    found = servers_of(composed())
    assert (found.engine, found.devices, found.colocate) == ("torch", 1, True)


def test_servers_take_devices_of_their_own():
    options = "{tp_size: 4, mem-fraction-static: 0.85}"
    found = servers_of(
        composed("rollout.engine=sglang", "rollout.sglang.num_replicas=2", f"rollout.sglang.server_args={options}")
    )
    assert (found.devices, found.tensor, found.colocate, found.memory_share) == (8, 4, False, 0.85)


def test_servers_that_run_already():
    found = servers_of(config_of("deepseek_v3"))
    assert (found.elsewhere, found.replicas) == (True, 2)


def test_a_size_that_is_no_integer_is_refused():
    with pytest.raises(ConfigError) as caught:
        servers_of(composed("rollout.engine=sglang", "rollout.sglang.server_args={tp_size: many}"))
    assert caught.value.problems[0].key == "rollout.sglang.server_args.tp_size"
