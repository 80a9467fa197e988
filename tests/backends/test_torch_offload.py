"""Offloading weights and optimizer state between uses gives bitwise the same training and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny_models import make_samples, save_model
from torch import Tensor

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.torch import backend as backend_module
from agentrl.backends.torch.backend import TorchBackend, load_torch_backend
from agentrl.backends.torch.cpu_offload import CpuOffload, Moves, moves_of
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig

SFT = PolicyLoss("sft")
OFFLOAD = {"param_offload": True, "optimizer_offload": True}


class Elsewhere:
    """A second device on the CPU: offloaded tensors become NaN, so a missing move back is noticed."""

    def __init__(self) -> None:
        self.moved: Counter[str] = Counter()

    @property
    def moves(self) -> Moves:
        return Moves(self._out, self._back)

    def _out(self, value: Tensor) -> Tensor:
        self.moved["out"] += 1
        copy = value.clone()
        if value.is_floating_point():
            value.fill_(torch.nan)
        return copy

    def _back(self, value: Tensor) -> Tensor:
        self.moved["back"] += 1
        return value.clone()


def load(
    path: Path, device: str = "cpu", optimizer: str = "adamw", lora_rank: int = 0, **actor: object
) -> TorchBackend:
    optim = {"lr": 1e-2, "name": optimizer}
    config = ActorConfig.model_validate({"optim": optim, "device": device, **actor})
    model = ModelConfig(path=str(path), lora_rank=lora_rank)
    return load_torch_backend(model, config, total_updates=9, seed=0)


def trained(backend: TorchBackend, folder: Path) -> list[object]:
    """Everything a run computes: metrics, scores and published weights, then the same after a resume."""
    found: list[object] = []
    for seed in range(3):
        found.append(asyncio.run(backend.train_step(make_samples(4, seed), SFT)).metrics)
        found.append(asyncio.run(backend.score(make_samples(3))))
        asyncio.run(backend.save(folder))
        asyncio.run(backend.load(folder))
    found += [(name, value.tolist()) for name, value in backend.weights()]
    asyncio.run(backend.close())
    return found


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("optimizer", "lora_rank"), [("adamw", 0), ("muon", 0), ("adamw", 4)])
def test_training_is_bitwise_the_same(optimizer: str, lora_rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save_model(tmp_path / "model")
    plain = trained(load(path, optimizer=optimizer, lora_rank=lora_rank), tmp_path / "a")
    elsewhere = Elsewhere()
    monkeypatch.setattr(backend_module, "moves_of", lambda device: elsewhere.moves)
    parked = load(path, optimizer=optimizer, lora_rank=lora_rank, **OFFLOAD)
    assert elsewhere.moved == {"out": len(list(parked.model.parameters()))}
    assert trained(parked, tmp_path / "b") == plain
    assert elsewhere.moved["out"] > elsewhere.moved["back"] > 100


def test_offloaded_tensors_are_on_the_gpu_only_while_used():
    elsewhere, tensors = Elsewhere(), [torch.ones(2), torch.nn.Parameter(torch.ones(3))]
    first = [tensor.data_ptr() for tensor in tensors]
    parking = CpuOffload(lambda: tensors, elsewhere.moves)
    assert elsewhere.moved == {"out": 2}

    def fails() -> None:
        with parking.in_use():
            assert elsewhere.moved == {"out": 2, "back": 2}
            raise KeyError

    with pytest.raises(KeyError):
        fails()  # a failed call also offloads its weights
    assert elsewhere.moved == {"out": 4, "back": 2}
    assert [tensor.data_ptr() for tensor in tensors] != first
    assert all(tensor.eq(1).all() for tensor in tensors)


def test_a_state_that_was_loaded_is_offloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    elsewhere = Elsewhere()
    monkeypatch.setattr(backend_module, "moves_of", lambda device: elsewhere.moves)
    backend = load(save_model(tmp_path), optimizer_offload=True)
    asyncio.run(backend.train_step(make_samples(3), SFT))
    state = {name: value.clone() for name, value in backend._optimizer.named_state().items()}
    moved = Counter(elsewhere.moved)
    backend._optimizer.load_named_state(state, 1)
    assert elsewhere.moved["out"] - moved["out"] == elsewhere.moved["back"] - moved["back"] > 0


def test_offload_on_the_cpu_moves_nothing(tmp_path: Path):
    assert moves_of(torch.device("cpu")) is None
    backend = load(save_model(tmp_path), **OFFLOAD)
    first = [value.data_ptr() for value in backend.model.parameters()]
    asyncio.run(backend.train_step(make_samples(3), SFT))
    assert [value.data_ptr() for value in backend.model.parameters()] == first


@pytest.mark.gpu
@pytest.mark.parametrize(("optimizer", "lora_rank"), [("adamw", 0), ("muon", 0), ("adamw", 4)])
def test_on_a_gpu_training_is_bitwise_the_same_and_memory_is_free_between_uses(
    optimizer: str, lora_rank: int, tmp_path: Path
):
    path = save_model(tmp_path / "model")
    plain = trained(load(path, "cuda", optimizer, lora_rank), tmp_path / "a")
    parked = load(path, "cuda", optimizer, lora_rank, **OFFLOAD)
    assert trained(parked, tmp_path / "b") == plain
    assert {value.device.type for value in parked.model.parameters()} == {"cpu"}
    assert all(value.is_pinned() for value in parked.model.parameters())
    assert {value.device.type for value in parked._optimizer._averages()} == {"cpu"}
