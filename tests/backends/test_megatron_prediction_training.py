"""`actor.megatron.mtp_loss_scaling_factor` trains the layers for multi-token prediction, and nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import torch
from megatron_models import assert_equal_gradients, gradients, in_one_process, layout_of, make_request
from prediction_layers import NUM_LAYERS, Ahead, names_of, prediction_loss, save_with_layers
from tiny_models import make_samples
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest

pytestmark = pytest.mark.megatron

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
FACTOR = 0.3
LOSS = PolicyLoss("vanilla")
LAYOUTS = {
    1: ("",),
    2: ("tp2", "pp2", "ep2", "dp", "tp2 ep2 etp1", "cp2", "tp2 hybrid", "pp2 hybrid", "ep2 allgather", "tp2 bridge"),
    4: ("tp2 pp2", "pp2 ep2", "tp2 ep2 etp1", "tp2 pp2 ep2 etp1", "pp2 cp2", "ep2 bridge"),
}[NUM_RANKS]


def request_of(path: Path, layout: str, factor: float = FACTOR, **options: object) -> ModelRequest:
    megatron = layout_of(layout) | {"mtp_loss_scaling_factor": factor} | dict(options.pop("megatron", {}))
    return make_request(path, megatron=megatron, **options)


def reference(path: Path, layers: list[Ahead], samples) -> tuple[dict[str, Tensor], float]:
    """The gradients of the layers, under their names in memory, and the loss without the factor."""
    model = in_one_process(make_request(path)).model
    loss = prediction_loss(model, layers, samples)
    (FACTOR * loss).backward()
    first = model.config.num_hidden_layers
    found = {name: value.grad for at, layer in enumerate(layers) for name, value in names_of(layer, first + at).items()}
    return found, float(loss.detach())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [1, 2])
def test_gradients_are_those_of_plain_torch_and_others_do_not_change(start, tmp_path, layout, number):
    layers, samples = save_with_layers(tmp_path, number=number), make_samples(7)
    expected, _ = reference(tmp_path, layers, samples)
    found = gradients(start(request_of(tmp_path, layout)), samples, LOSS)
    assert_equal_gradients(found, expected)
    without = gradients(start(request_of(tmp_path, layout, 0.0)), samples, LOSS)
    assert found.keys() == without.keys() | expected.keys()
    for name, value in without.items():  # biases of routers have none
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
