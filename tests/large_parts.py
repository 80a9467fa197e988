"""Prints the weights of processes of an experiment, built without memory: `large_parts.py NAME RANK...`.

One JSON line per process: name, shape, and number of processes of a pipeline stage that share the weight. A program of
its own, because torch has one process group per process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from large_models import config_of, shape_of
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, PretrainedConfig

from agentrl.config import RunConfig
from agentrl.config.megatron import MegatronConfig


@contextmanager
def process(config: RunConfig, rank: int) -> Iterator[None]:
    """One process of the experiment's world, without the others: its messages are dropped."""
    from megatron.core import parallel_state  # imported after `prepare`

    layout = config.actor.megatron
    dist.init_process_group("fake", rank=rank, world_size=config.trainer.num_processes, store=FakeStore())
    parallel_state.initialize_model_parallel(
        layout.tensor_model_parallel_size,
        layout.pipeline_model_parallel_size,
        context_parallel_size=layout.context_parallel_size,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        expert_tensor_parallel_size=layout.expert_tensor_size,
        create_gloo_process_groups=False,
    )
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def part_of(config: RunConfig, hf: PretrainedConfig, rank: int) -> dict[str, Tensor]:
    """The weights of one process."""
    from agentrl.backends.megatron.architecture.build import build_chunks
    from agentrl.backends.megatron.architecture.model_config import transformer_config
    from agentrl.backends.megatron.platform import on_device

    with process(config, rank), on_device(), torch.device("meta"):
        options = transformer_config(hf, torch.bfloat16, config.actor.megatron, recompute=True, key="model.path")
        chunks = build_chunks(options, hf)
    return {f"{number}.{key}": value for number, chunk in enumerate(chunks) for key, value in chunk.named_parameters()}


def num_shards(layout: MegatronConfig, key: str, weight: Tensor) -> int:
    """Number of processes of a stage that share the weight."""
    if ".experts." in key:
        return layout.expert_tensor_size * layout.expert_model_parallel_size
    return layout.tensor_model_parallel_size if getattr(weight, "tensor_model_parallel", False) else 1


def main(name: str, *ranks: str) -> None:
    from agentrl.backends.megatron.platform import prepare

    prepare()
    config = config_of(name)
    hf = AutoConfig.for_model(**shape_of(name))
    for rank in ranks:
        part, layout = part_of(config, hf, int(rank)), config.actor.megatron
        print(json.dumps([(key, weight.shape, num_shards(layout, key, weight)) for key, weight in part.items()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
