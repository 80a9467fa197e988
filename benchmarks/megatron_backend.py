"""Measure the Megatron backend on a CPU. Needs `make megatron`.

    .venv-megatron/bin/python benchmarks/megatron_backend.py [train] [publish] [files] [calls]

- train: tokens/s of `train_step`, measured in turn: the torch backend in one process, Megatron in one process, and
  Megatron in two data-parallel processes. Each process has one core.
- publish: reading all weights from two processes (TP 2, or EP 2 for a model with experts) and loading them into another
  model, compared with a plain copy.
- files: loading a model from a folder and writing the model, compared with safetensors alone.
- calls: time that rank 0 needs for a step besides the computation (as in benchmarks/several_devices.py).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from several_devices import (
    NUM_REPEATS,
    another_process,
    calls,
    close,
    make_request,
    make_samples,
    median_s,
    report,
    run,
    step,
)
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.joining import only_rank
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.torch.backend import load_torch_backend
from agentrl.models.weights_in_place import load_in_place
from agentrl.types.sample import Sample

MOE = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_experts": 16,
    "num_experts_per_tok": 2,
}


def request_of(folder: Path, size: str, *, trainable: bool = True, **layout: object) -> ModelRequest:
    if size == "MoE" and not (folder / size).exists():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(Qwen3MoeConfig(**MOE)).save_pretrained(folder / size)
    found = make_request(folder, size, trainable=trainable)
    megatron = found.actor.megatron.model_copy(update=layout)
    return replace(found, actor=found.actor.model_copy(update={"backend": "megatron", "megatron": megatron}))


def one_process(connection: Connection, folder: Path, size: str, samples: list[Sample]) -> None:
    """Receive names of backends, and answer each with the seconds of one step, until an empty name comes."""
    torch.set_num_threads(1)
    request = request_of(folder, size)
    backends = {
        "torch": load_torch_backend(request.model, request.actor, total_updates=100, seed=0),
        "megatron": MegatronBackend(only_rank(), request, seed=0),
    }
    while name := connection.recv():
        connection.send(median_s(partial(step, backends[name], samples), 1))


def train(ranks: Ranks, folder: Path) -> None:
    """Measure the three variants in turn, with the same steps. The first round is not counted."""
    for size, num_samples, num_tokens in (("quickstart", 128, 100), ("107M", 32, 160)):
        request, samples = request_of(folder, size), make_samples(num_samples, num_tokens)
        with another_process(one_process, folder, size, samples) as other:
            two = MegatronBackend(ranks, request, seed=0)
            rounds = []
            for _ in range(NUM_REPEATS + 1):
                found = []
                for name in ("megatron", "torch"):
                    other.send(name)
                    found.append(other.recv())
                rounds.append((*found, median_s(partial(step, two, samples), 1)))
        close(two)
        names = ("Megatron, one process", "torch, one process", "Megatron, two processes")
        report(f"train {size}", names, sum(len(sample.token_ids) for sample in samples), rounds[1:])


def publish(ranks: Ranks, folder: Path) -> None:
    for size, layout in (
        ("quickstart", {"tensor_model_parallel_size": 2}),
        ("500M", {"tensor_model_parallel_size": 2}),
        ("MoE", {"expert_model_parallel_size": 2}),
    ):
        request = request_of(folder, size, trainable=False, **layout)
        engine = AutoModelForCausalLM.from_pretrained(request.model.path, dtype=torch.float32)
        pairs = [(value.detach(), value.detach().clone()) for value in engine.parameters()]
        num_bytes = sum(value.nbytes for value, _ in pairs)
        plain = median_s(lambda pairs=pairs: [target.copy_(value) for value, target in pairs])
        del pairs
        backend = MegatronBackend(ranks, request, seed=0)
        took = median_s(lambda each=backend, model=engine: load_in_place(model, each.weights()))
        print(f"publish {size}, {num_bytes / 1e6:,.0f} MB, {layout}: {took * 1e3:,.1f} ms,", end=" ")
        print(f"{took / plain:.1f} x a plain copy ({plain * 1e3:,.2f} ms)")
        close(backend)


def files(ranks: Ranks, folder: Path) -> None:
    """Measure loading, which also builds the model, and writing, which also writes the other files of the folder."""
    for size, layout in (("500M", {"tensor_model_parallel_size": 2}), ("MoE", {"expert_model_parallel_size": 2})):
        request = request_of(folder, size, trainable=False, **layout)
        source = folder / size / "model.safetensors"
        size_mb = source.stat().st_size / 1e6
        kept: list[MegatronBackend] = []

        def load(request: ModelRequest = request, kept: list[MegatronBackend] = kept) -> None:
            close(*kept)
            kept[:] = [MegatronBackend(ranks, request, seed=0)]

        def copied(source: Path = source) -> dict[str, torch.Tensor]:
            return {name: value.clone() for name, value in load_file(source).items()}

        compare(f"load {size}", size_mb, load, copied)
        load()
        write = partial(save_file, copied(), folder / "plain.safetensors")
        compare(f"write {size}", size_mb, partial(write_model, kept[0], folder / "out"), write)
        close(*kept)


def write_model(backend: MegatronBackend, folder: Path) -> None:
    asyncio.run(backend.save(folder))


def compare(name: str, size_mb: float, ours: Callable[[], object], plain: Callable[[], object]) -> None:
    took, alone = median_s(ours, 3), median_s(plain, 3)
    print(f"files {name}: {size_mb / took:,.0f} MB/s, safetensors alone {size_mb / alone:,.0f} MB/s")


PARTS = {"train": train, "publish": publish, "files": files, "calls": calls}


if __name__ == "__main__":
    run(PARTS, sys.argv[1:])
