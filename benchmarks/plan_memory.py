"""Compare the memory that `agentrl plan` predicts with the memory that tiny models use on the CPU.

    python benchmarks/plan_memory.py [LAYOUT ...]                    # torch, FSDP2, Ulysses
    .venv-megatron/bin/python benchmarks/plan_memory.py megatron     # TP, PP, EP, DP; needs `make megatron`

The memory is measured on rank 0. For weights, gradients and optimizer, it is the bytes of their tensors. For
activations, it is the largest amount of memory that autograd keeps at the same time, without weights; memory that
several tensors share is counted once (torch.autograd.graph.saved_tensors_hooks).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.backend import FsdpBackend
from agentrl.backends.fsdp.joining import only_rank
from agentrl.backends.fsdp.ranks import STORE, Ranks, join
from agentrl.backends.fsdp.sharding import local_part
from agentrl.backends.torch.gradients import mini_batch
from agentrl.cli.compose import compose_config
from agentrl.config.rules.megatron import has_layouts
from agentrl.config.run import RunConfig
from agentrl.plan.counts import shape_of
from agentrl.plan.layout import layout_of
from agentrl.plan.memory.training import Trainer
from agentrl.registry import child_path
from agentrl.types.sample import Sample

LENGTH = 512
LOSS = PolicyLoss("vanilla")
SERVE = "import sys, torch; torch.set_num_threads(1); from agentrl.backends.fsdp.ranks import serve; sys.exit(serve())"
DENSE: dict[str, object] = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
MIXTURE = DENSE | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
LATENT = DENSE | {
    "model_type": "deepseek_v3",
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
}
AHEAD = LATENT | {"num_nextn_predict_layers": 1}
MODELS = {"dense": DENSE, "experts": MIXTURE, "latent": LATENT, "ahead": AHEAD}
ULYSSES, CHECKPOINTED = "actor.ulysses_sequence_parallel_size=2", "model.enable_gradient_checkpointing=true"
MIXED, HALF = "actor.autocast=bfloat16", "model.dtype=bfloat16"
PLAIN: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "torch, float32": ("dense", 1, ()),
    "torch, bfloat16": ("dense", 1, (HALF,)),
    "torch, autocast": ("dense", 1, (MIXED,)),
    "torch, checkpointing": ("dense", 1, (CHECKPOINTED,)),
    "torch, Muon": ("dense", 1, ("actor.optim.name=muon",)),
    "torch, LoRA, bfloat16": ("dense", 1, (HALF, "model.lora_rank=8")),
    "torch, experts": ("experts", 1, ()),
    "torch, experts, bfloat16": ("experts", 1, (HALF,)),
    "FSDP2 on 2": ("dense", 2, ()),
    "FSDP2 on 2, autocast": ("dense", 2, (MIXED,)),
    "FSDP2 on 3": ("dense", 3, ()),
    "FSDP2 on 2, experts": ("experts", 2, ()),
    "FSDP2 on 2, fsdp_size 1": ("dense", 2, ("actor.fsdp_size=1",)),
    "Ulysses 2": ("dense", 2, (ULYSSES,)),
}
SIZE = "actor.megatron"
PREDICTING = f"{SIZE}.mtp_loss_scaling_factor=0.1"
TENSOR, STAGES = f"{SIZE}.tensor_model_parallel_size=2", f"{SIZE}.pipeline_model_parallel_size=2"
MEGATRON: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "Megatron": ("dense", 1, ()),
    "Megatron, bfloat16": ("dense", 1, (HALF,)),
    "Megatron, checkpointing": ("dense", 1, (CHECKPOINTED,)),
    "Megatron, DP 2": ("dense", 2, ()),
    "Megatron, DP 2, bfloat16": ("dense", 2, (HALF,)),
    "Megatron, TP 2": ("dense", 2, (TENSOR,)),
    "Megatron, PP 2": ("dense", 2, (STAGES,)),
    "Megatron, CP 2": ("dense", 2, (f"{SIZE}.context_parallel_size=2",)),
    "Megatron, experts": ("experts", 1, ()),
    "Megatron, EP 2": ("experts", 2, (f"{SIZE}.expert_model_parallel_size=2",)),
    "Megatron, latent attention": ("latent", 1, ()),
    "Megatron, latent attention, TP 2": ("latent", 2, (TENSOR,)),
    "Megatron, multi-token prediction": ("ahead", 1, (PREDICTING,)),
    "Megatron, multi-token prediction, TP 2": ("ahead", 2, (PREDICTING, TENSOR)),
}
PARTS = {"weights": 0.05, "gradients": 0.05, "optimizer": 0.05, "activations": 0.15}
"""Part -> largest allowed relative error."""


class Kept:
    """Counts the memory that autograd keeps for backward passes. Weights do not count, even if FSDP2 gathers them."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules, self._uses = modules, Counter[int]()
        self._sizes: dict[int, int] = {}
        self.most = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        again = patch("torch.utils.checkpoint._recomputation_hook", partial(_Recomputed, self))
        with again, torch.autograd.graph.saved_tensors_hooks(self._pack, lambda box: box[0]):
            yield

    def _pack(self, value: Tensor) -> Any:
        box = _Box([value.detach()])
        self.hold(box, value)
        return box

    def hold(self, owner: object, value: Tensor) -> None:
        """Count the memory of a tensor until `owner` is deleted."""
        own = {_memory(local_part(each)) for module in self._modules for each in module.parameters()}
        if (key := _memory(value)) not in own:
            self._uses[key] += 1
            self._sizes[key] = value.untyped_storage().nbytes()
            self.most = max(self.most, sum(self._sizes.values()))
            weakref.finalize(owner, self._release, key)

    def _release(self, key: int) -> None:
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._sizes[key]


class _Recomputed(checkpoint._recomputation_hook):
    """Counts the tensors that torch's gradient checkpointing keeps when it computes a layer again.

    The hooks of `Kept.counting` do not get these tensors.
    """

    def __init__(self, kept: Kept, frame: weakref.ref[Any], gid: int) -> None:
        super().__init__(frame, gid)
        self._kept, self._frame, self._gid, self._keep = kept, frame, gid, self.pack_hook
        self.pack_hook = self._count

    def _count(self, value: Tensor) -> Tensor:
        try:
            return self._keep(value)
        finally:  # for the last tensor, `_keep` raises an exception to end the computation
            of = self._frame()
            holder = of.weak_holders[of.recomp_counter[self._gid] - 1]()
            if holder is not None and (handle := holder.handles.get(self._gid)):
                self._kept.hold(handle, value)


class _Box(list[Tensor]):
    """A list to which weak references are possible."""


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def measured(ranks: Ranks, number: int, samples: Sequence[Sample], own: Sequence[int]) -> dict[str, int]:
    """Do one update on every rank; return the bytes of this rank."""
    model: Any = ranks.held[number]
    modules = model.passes.chunks if hasattr(model, "passes") else [model.model]
    weights = [value for module in modules for value in module.parameters()]
    kept = Kept(modules)
    with kept.counting():
        model.accumulate(mini_batch(samples, LOSS), own, LOSS)
    gradients = _gradients(modules, weights)
    model.update()
    state = model.optimizer._held() if hasattr(model, "optimizer") else model._optimizer._averages()
    return {
        "weights": _num_bytes(weights),
        "gradients": gradients,
        "optimizer": _num_bytes([value for value in state if value.dim()]),
        "activations": kept.most,
    }


def _gradients(modules: Sequence[Any], weights: Sequence[Tensor]) -> int:
    if hasattr(modules[0], "expert_parallel_buffers"):
        buffers = [buffer for module in modules for buffer in (*module.buffers, *module.expert_parallel_buffers)]
        return sum(buffer.grad_data.nbytes for buffer in buffers)
    return _num_bytes([value.grad for value in weights if value.grad is not None])


def _num_bytes(values: Sequence[Tensor]) -> int:
    return sum(local_part(value).nbytes for value in values)


@contextmanager
def ranks_of(folder: Path, size: int) -> Iterator[Ranks]:
    """Start the other ranks and join them; this process is rank 0."""
    os.environ |= {"WORLD_SIZE": str(size), STORE: str(folder / "store"), "PYTHONPATH": child_path(), "RANK": "0"}
    others = [
        subprocess.Popen([sys.executable, "-c", SERVE], env={**os.environ, "RANK": str(rank)})
        for rank in range(1, size)
    ]
    ranks = join()
    try:
        yield ranks
    finally:
        ranks.close()
        for process in others:
            process.wait(60)


def config_for(folder: Path, name: str, size: int, keys: Sequence[str], *, megatron: bool) -> RunConfig:
    """Return a configuration whose mini-batch has (data-parallel copies) x (pipeline stages) samples."""
    path = folder / name
    if not path.exists():
        torch.manual_seed(0)
        model = AutoConfig.for_model(**MODELS[name])
        AutoModelForCausalLM.from_config(model).save_pretrained(path)
        if getattr(model, "num_nextn_predict_layers", 0):
            add_predicting_layer(path, model.num_hidden_layers, model.hidden_size)
    own = ["actor.backend=megatron", "actor.share_prefixes=false"] if megatron else ["actor.device=cpu"]
    config = compose_config(
        [
            *(f"model.path={path}", "algorithm.name=rft", "rollout.n=1", f"trainer.n_gpus_per_node={size}"),
            *(f"data.max_prompt_length={LENGTH // 2}", f"data.max_response_length={LENGTH // 2}"),
            *(f"actor.ppo_max_token_len_per_gpu={LENGTH}", "+actor.optim.lr=1e-4", *own, *keys),
        ]
    )
    layout = layout_of(config)
    data = config.data.model_copy(update={"train_batch_size": layout.data_parallel * layout.pipeline})
    return config.model_copy(update={"data": data})


def add_predicting_layer(path: Path, num_layers: int, hidden: int) -> None:
    """Add the weights of a layer for multi-token prediction, because transformers does not write these weights."""
    file, last, new = path / "model.safetensors", f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    weights = load_file(file)
    weights |= {new + name.removeprefix(last): value for name, value in weights.items() if name.startswith(last)}
    weights |= {f"{new}{name}.weight": torch.ones(hidden) for name in ("enorm", "hnorm", "shared_head.norm")}
    weights[f"{new}eh_proj.weight"] = torch.randn(hidden, 2 * hidden) / hidden
    save_file({name: value.clone() for name, value in weights.items()}, file, {"format": "pt"})


def predicted(config: RunConfig, model: str) -> Mapping[str, float]:
    shape = shape_of(MODELS[model] | {"dtype": "float32"})
    assert shape is not None
    trainer = Trainer(config, shape, layout_of(config), on_cpu=True)
    most = max(parts["activations"] for parts in trainer.moments(config.actor, shape))
    return {**trainer.phases()["update"], "activations": most}


def found_in(ranks: Ranks, config: RunConfig) -> dict[str, int]:
    from plan_memory import measured  # other ranks import `measured` from the module of this name

    request = ModelRequest(config.model, config.actor, total_updates=1)
    if has_layouts(config):
        from agentrl.backends.megatron.backend import MegatronBackend

        backend: Any = MegatronBackend(ranks, request, seed=0)
    else:
        backend = FsdpBackend(ranks, request, seed=0)
    count = config.data.train_batch_size
    samples = samples_of(count)
    groups = max(backend._group_of) + 1
    own = [[index for index in range(count) if index % groups == group] for group in backend._group_of]
    return ranks.each(measured, [(backend._number, samples, each) for each in own])[0]


def samples_of(count: int) -> list[Sample]:
    """Return samples of `LENGTH` + 1 tokens; the model computes `LENGTH` of them, and the second half is trained."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 500, (count, LENGTH + 1), generator=generator).tolist()
    half = LENGTH // 2
    mask, ones, zeros = [0] * half + [1] * (LENGTH + 1 - half), [1.0] * (LENGTH + 1), [0.0] * (LENGTH + 1)
    return [Sample(row, mask, ones, zeros, behaviour_logprobs=zeros) for row in tokens]


def alone(config: RunConfig) -> dict[str, int]:
    """Measure the torch backend in this process."""
    from agentrl.backends.torch.backend import load_torch_backend

    backend: Any = load_torch_backend(config.model, config.actor, total_updates=1, seed=0)
    (sample,) = samples_of(1)
    weights = [*backend.model.parameters()]
    kept, update = Kept([backend.model]), backend._optimizer.step
    found: dict[str, int] = {}

    def step() -> dict[str, float]:
        found["gradients"] = _gradients([backend.model], weights)
        done: dict[str, float] = update()
        return done

    backend._optimizer.step = step
    with kept.counting():
        backend._train_step([sample], LOSS)
    averages = [value for value in backend._optimizer._averages() if value.dim()]
    return found | {
        "weights": _num_bytes(weights),
        "optimizer": _num_bytes(averages),
        "activations": kept.most,
    }


def measure(name: str) -> None:
    """Measure one layout and print its row; `main` starts a new process for each layout."""
    is_megatron = name in MEGATRON
    model, size, keys = (MEGATRON if is_megatron else PLAIN)[name]
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(Path(folder), model, size, keys, megatron=is_megatron)
        if size > 1:
            with ranks_of(Path(folder), size) as ranks:
                found = found_in(ranks, config)
        else:
            found = found_in(only_rank(), config) if is_megatron else alone(config)
    expected = predicted(config, model)
    cells = [f"{expected[part] / 1e6:.3f} / {found[part] / 1e6:.3f}" for part in PARTS]
    errors = {part: expected[part] / found[part] - 1 for part in PARTS}
    cells = [f"{cell} ({errors[part]:+.1%})" for part, cell in zip(PARTS, cells, strict=True)]
    bad = [part for part, most in PARTS.items() if abs(errors[part]) > most]
    print(f"| {name} | {' | '.join(cells)} |{f'  <- {bad}' if bad else ''}", flush=True)


def main(names: Sequence[str]) -> None:
    if names[:1] == ["--one"]:
        torch.set_num_threads(1)
        logging.disable_progress_bar()
        measure(names[1])
        return
    chosen = MEGATRON if [*names] == ["megatron"] else [name for name in PLAIN if not names or name in names]
    chosen = [name for name in names if name in MEGATRON] or chosen
    print(f"| layout; MB predicted / measured | {' | '.join(PARTS)} |\n|---|{'---|' * len(PARTS)}", flush=True)
    for name in chosen:
        subprocess.run([sys.executable, __file__, "--one", name], check=False)


if __name__ == "__main__":
    main(sys.argv[1:])
