"""The experiments for large models: the layout fits the model, and a process's part of it fits a GPU.

The number of weights of each model is compared with the published one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import pytest
from large_models import PUBLISHED, WITH_MEGATRON, config_of, shape_of, weights_of

from agentrl.config import RunConfig
from agentrl.config.rules.combinations import check_training
from agentrl.config.rules.model_layout import wrong_for_model
from agentrl.models.shape import model_shape

WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12
"""Bytes per weight: bfloat16, a float32 gradient, and AdamW's float32 copy with two averages."""
GPU = 80e9

pytestmark = pytest.mark.usefixtures("megatron")


class Sizes(NamedTuple):
    """Numbers of weights: of routed experts, of other layers, of embedding and head together."""

    experts: int
    layers: int
    vocabulary: int


def sizes(name: str) -> Sizes:
    weights = weights_of(name)
    experts = sum(number for key, number in weights.items() if ".mlp.experts." in key)
    vocabulary = sum(number for key, number in weights.items() if "embed_tokens" in key or "lm_head" in key)
    return Sizes(experts, sum(weights.values()) - experts - vocabulary, vocabulary)


def stages(config: RunConfig, num_layers: int) -> list[int]:
    """Number of layers of each pipeline stage."""
    layout = config.actor.megatron
    first, last = layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage
    others = layout.pipeline_model_parallel_size - (first is not None) - (last is not None)
    each = (num_layers - (first or 0) - (last or 0)) // others
    return [*([first] if first else []), *([each] * others), *([last] if last else [])]


def parts(config: RunConfig, shape: dict[str, object]) -> Iterator[tuple[str, int, int]]:
    """Yield (what, size, number of processes that share it) for each size that must be shared without a remainder."""
    layout = config.actor.megatron
    tensor, expert = layout.tensor_model_parallel_size, layout.expert_tensor_size
    yield "attention heads", int(str(shape["num_attention_heads"])), tensor
    yield "key-value heads", int(str(shape["num_key_value_heads"])), tensor
    yield "vocabulary", int(str(shape["vocab_size"])), tensor
    yield "experts", int(str(shape.get("num_experts") or shape["n_routed_experts"])), layout.expert_model_parallel_size
    yield "width of an expert", int(str(shape["moe_intermediate_size"])), expert


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shapes_are_those_of_the_public_model(name):
    assert sum(sizes(name)) == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_layout_fits_the_model(name):
    config, shape = config_of(name), model_shape(shape_of(name))
    check_training(config)
    assert list(wrong_for_model(config.actor.megatron, shape)) == []


@pytest.mark.parametrize("name", WITH_MEGATRON)
def test_every_process_has_the_same_part(name):
    config, shape = config_of(name), shape_of(name)
    assert [what for what, size, processes in parts(config, shape) if size % processes] == []
    layers = stages(config, int(str(shape["num_hidden_layers"])))
    assert len(layers) == config.actor.megatron.pipeline_model_parallel_size
    assert sum(layers) == shape["num_hidden_layers"]


@pytest.mark.parametrize("name", WITH_MEGATRON)
def test_a_processs_part_leaves_a_fifth_of_a_gpu_free(name):
    """Of the largest stage; the embedding is on the first stage and the head on the last."""
    config, layout, found = config_of(name), config_of(name).actor.megatron, sizes(name)
    num_layers = int(str(shape_of(name)["num_hidden_layers"]))
    share = max(stages(config, num_layers)) / num_layers
    tensor, stage_size = layout.tensor_model_parallel_size, layout.pipeline_model_parallel_size
    expert_group = layout.expert_tensor_size * layout.expert_model_parallel_size
    processes = config.trainer.num_processes // stage_size
    others = (found.layers * share + found.vocabulary / 2) / tensor
    experts = found.experts * share / expert_group
    assert ceil(processes / expert_group) * expert_group == processes
    optimizer = OPTIMIZER * (others * tensor / processes + experts * expert_group / processes)
    reference = WEIGHT * (others + experts) if config.uses_reference else 0
    assert (WEIGHT + GRADIENT) * (others + experts) + optimizer + reference < 0.8 * GPU


def test_four_gpus_hold_the_sharded_model():
    assert sum(sizes("qwen3_8b")) * (4 + 4 + 8) / config_of("qwen3_8b").trainer.num_processes < 0.5 * GPU
