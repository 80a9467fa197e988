"""Megatron's parts of the large models: every process's shapes, built without memory in a world of that size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from large_models import config_of, shape_of, weights_of
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig

from agentrl.backends.megatron.platform import on_device, prepare

prepare()

from megatron.core import parallel_state  # noqa: E402  # after prepare

from agentrl.backends.megatron.build import build_chunks  # noqa: E402
from agentrl.backends.megatron.model_config import transformer_config  # noqa: E402
from agentrl.config import RunConfig  # noqa: E402

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("megatron")]
NAMES = ["qwen3_30b_a3b", "qwen3_235b_a22b", "deepseek_v3"]


@contextmanager
def process(config: RunConfig, rank: int) -> Iterator[None]:
    """One process of the experiment's world, without the others: their messages are dropped."""
    layout = config.actor.megatron
    dist.init_process_group("fake", rank=rank, world_size=config.trainer.num_processes, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            layout.tensor_model_parallel_size,
            layout.pipeline_model_parallel_size,
            context_parallel_size=layout.context_parallel_size,
            expert_model_parallel_size=layout.expert_model_parallel_size,
            expert_tensor_parallel_size=layout.expert_tensor_size,
            create_gloo_process_groups=False,
        )
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def part_of(name: str, rank: int) -> dict[str, Tensor]:
    """The weights of one process."""
    config = config_of(name)
    shape = {key: value for key, value in shape_of(name).items() if key != "rope_scaling"}  # it changes no weight
    hf = AutoConfig.for_model(**shape)
    with process(config, rank), on_device(), torch.device("meta"):
        options = transformer_config(hf, torch.bfloat16, config.actor.megatron, recompute=True, key="model.path")
        chunks = build_chunks(options, hf)
    return {f"{number}.{key}": value for number, chunk in enumerate(chunks) for key, value in chunk.named_parameters()}


def num_shards(config: RunConfig, key: str, weight: Tensor) -> int:
    """Number of processes of a stage that share the weight."""
    layout = config.actor.megatron
    if ".experts." in key:
        return layout.expert_tensor_size * layout.expert_model_parallel_size
    return layout.tensor_model_parallel_size if getattr(weight, "tensor_model_parallel", False) else 1


def shapes(part: Mapping[str, Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(key, tuple(weight.shape)) for key, weight in part.items()]


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_all_stages_are_the_complete_model(name):
    """The first process of each stage, whose weights count as often as there are processes that share them."""
    config = config_of(name)
    num_stages = config.actor.megatron.pipeline_model_parallel_size
    step = config.trainer.num_processes // num_stages
    parts = [part_of(name, stage * step) for stage in range(num_stages)]
    total = sum(weight.numel() * num_shards(config, key, weight) for part in parts for key, weight in part.items())
    assert total == sum(weights_of(name).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_processes_of_a_stage_have_the_same_shapes(name):
    config = config_of(name)
    step = config.trainer.num_processes // config.actor.megatron.pipeline_model_parallel_size
    for first in range(0, config.trainer.num_processes, step):
        expected = shapes(part_of(name, first))
        assert all(shapes(part_of(name, rank)) == expected for rank in range(first + 1, first + step))
