"""Offloading weights and optimizer state of a layout between uses gives bitwise the same training."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import make_request
from test_megatron import LAYOUTS_OF_STEPS
from test_torch_offload import OFFLOAD, Elsewhere
from tiny_models import make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.megatron.backend import MegatronBackend

pytestmark = pytest.mark.megatron

LOSS = PolicyLoss("vanilla")


def trained(backend: MegatronBackend, other: MegatronBackend, folder: Path) -> list[object]:
    """Everything that a run computes, with a checkpoint after each update, and a copy in another model."""
    found: list[object] = []
    for seed in range(2):
        found.append(asyncio.run(backend.train_step(make_samples(4, seed), LOSS)).metrics)
        found.append(asyncio.run(backend.score(make_samples(3))))
        asyncio.run(backend.save(folder))
        asyncio.run(backend.load(folder))
    asyncio.run(other.copy_weights(backend.weights()))
    weights = [*backend.weights(), *other.weights()]
    asyncio.run(other.copy_weights([*backend.weights()]))
    found += [(name, value.tolist()) for name, value in [*weights, *other.weights()]]
    return [*found, asyncio.run(other.score(make_samples(3)))]


def num_bytes(backend: MegatronBackend) -> int:
    """Bytes of the weights and gradients of this process that are on its device."""
    model = backend._model
    storages = [value.untyped_storage() for chunk in model.passes.chunks for value in chunk.parameters()]
    if model.optimizer is not None:
        storages += [buffer.grad_data.untyped_storage() for chunk in model.passes.chunks for buffer in chunk.buffers]
    return sum(storage.nbytes() for storage in storages)


def policy_and_reference(request: ModelRequest) -> list[ModelRequest]:
    return [request, replace(request, trainable=False)]


CASES = [
    *(("adamw", torch.bfloat16, layout) for layout in LAYOUTS_OF_STEPS[-1:]),
    *(("adamw", torch.float32, layout) for layout in LAYOUTS_OF_STEPS),
    *(("muon", torch.float32, layout) for layout in LAYOUTS_OF_STEPS[:1]),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("optimizer", "dtype", "layout"), CASES)
def test_training_is_bitwise_the_same(start, tmp_path, monkeypatch, optimizer, dtype, layout):
    path = save_model(tmp_path / "model", "qwen3_moe", dtype)
    optim = {"name": optimizer, "lr": 1e-2}
    requests = policy_and_reference(make_request(path, layout, optim=optim))
    plain = trained(*map(start, requests), tmp_path / "a")
    elsewhere = Elsewhere()  # of this process; the others are on the CPU
    monkeypatch.setattr("agentrl.backends.megatron.model.moves_of", lambda device: elsewhere.moves)
    parked = [*map(start, policy_and_reference(make_request(path, layout, optim=optim, **OFFLOAD)))]
    assert elsewhere.moved["out"] > 0 == elsewhere.moved["back"]
    assert trained(*parked, tmp_path / "b") == plain
    assert elsewhere.moved["back"] > 20  # averages
    assert [num_bytes(each) for each in parked] == [0, 0]
