"""Requests for the tiny models in the layouts of the tests, and gradients from all processes of a layout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from rank_processes import DEVICE, ROUNDING, on_cpu
from tiny_models import make_model, make_samples
from torch import Tensor

from agentrl.algos.base import LossFunction
from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.base import ModelRequest
from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.backends.on_ranks import _part
from agentrl.backends.torch.backend import TorchBackend, load_scalar_backend, load_torch_backend
from agentrl.backends.torch.gradients import MiniBatch, accumulate_gradients, mini_batch
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.types.sample import Sample

SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "first": "num_layers_in_first_pipeline_stage",
    "last": "num_layers_in_last_pipeline_stage",
}

CANCELLING = "self_attn.k_proj.bias"
"""A bias that hardly changes attention: in float32 its gradient is 3e-6 off that in float64, in one process too."""
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 2.0,
    "beta_slow": 1.5,
    "mscale": 0.8,
    "mscale_all_dim": 0.5,
}
WITHOUT_MSCALE = {key: value for key, value in YARN.items() if "mscale" not in key}
PUBLISHED = {  # by DeepSeek-V3
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
ROTARY = {"head_dim": 8, "qk_rope_head_dim": 8}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "deep": ("qwen3", {"num_hidden_layers": 4}),
    "eight layers": ("qwen3", {"num_hidden_layers": 8}),
    "ten layers": ("llama", {"num_hidden_layers": 10}),
    "deep qwen3_moe": ("qwen3_moe", {"num_hidden_layers": 4}),
    "deep deepseek_v3": ("deepseek_v3", {"num_hidden_layers": 4}),
    "normalized experts": ("qwen3_moe", {"norm_topk_prob": True}),  # as in the published models
    "dense layers": ("qwen3_moe", {"num_hidden_layers": 4, "mlp_only_layers": [3], "decoder_sparse_step": 2}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "yarn": ("deepseek_v3", {"rope_parameters": YARN, **ROTARY}),
    "published yarn": ("deepseek_v3", {"rope_scaling": PUBLISHED, "rope_theta": 10000, **ROTARY}),
    "yarn without mscale": ("deepseek_v3", {"rope_parameters": WITHOUT_MSCALE, **ROTARY}),
    "glm4_moe": ("glm4_moe", {}),
    "glm4_moe without norms": (
        "glm4_moe",
        {"use_qk_norm": False, "attention_bias": False, "rope_parameters": LLAMA3, "partial_rotary_factor": 1.0},
    ),
}
"""Name -> family and options."""


def save_variant(path: Path, name: str) -> Path:
    """Save a model whose biases are not zero."""
    family, options = VARIANTS[name]
    model = make_model(family, **options)
    for key, value in model.state_dict().items():
        if key.endswith("bias"):
            value.copy_(torch.randn(value.shape) / 4)
    model.save_pretrained(path)
    return path


def layout_of(name: str) -> dict[str, object]:
    """`tp2 pp2 allgather` -> the section `actor.megatron`; `dp` is what remains of the processes."""
    layout: dict[str, object] = {}
    for word in name.split():
        letters = word.rstrip("0123456789")
        layout |= OTHERS[word] if word in OTHERS else {SIZES[letters]: int(word.removeprefix(letters))}
    return layout


OTHERS: dict[str, dict[str, object]] = {
    "dp": {},
    "bridge": {"use_mbridge": True},
    "mapping": {"use_mbridge": False},
    "allgather": {"moe_token_dispatcher_type": "allgather"},
    "without_sp": {"sequence_parallel": False},
    "hybrid": {"hybrid_model": True},
    "replicated": {"use_distributed_optimizer": False},
    "fp32": {"moe_router_dtype": "fp32"},
    "fp64": {"moe_router_dtype": "fp64"},
}


def make_request(
    path: Path, layout: str = "", *, model: dict[str, object] | None = None, **actor: object
) -> ModelRequest:
    optim = {"lr": 1e-2, "lr_warmup_steps": 2, "eps": 1e-3}  # a small eps would amplify rounding errors
    common = {"optim": optim, "device": DEVICE, "ppo_micro_batch_size_per_gpu": 2, "megatron": layout_of(layout)}
    common["share_prefixes"] = False
    config = ActorConfig.model_validate({**common, **actor})
    return ModelRequest(ModelConfig.model_validate({"path": str(path), **(model or {})}), config, total_updates=10)


def in_one_process(request: ModelRequest) -> TorchBackend:
    options = {"total_updates": 10, "seed": 0, "trainable": request.trainable}
    if request.value_head:
        return load_scalar_backend(request.model, request.actor, **options)
    return load_torch_backend(request.model, request.actor, **options, routed_by=request.routed_by)


def assert_equal_models(backend: MegatronBackend, alone: TorchBackend) -> None:
    """Weights, scores and gradients are those of one process."""
    samples = make_samples(7)  # micro-batches of different lengths
    weights = dict(backend.weights())
    for name, value in on_cpu(alone.weights()):
        assert torch.equal(weights[name], value), name
    found, expected = (asyncio.run(each.score(samples)) for each in (backend, alone))
    for own, theirs in zip([*found.logprobs, *found.entropy], [*expected.logprobs, *expected.entropy], strict=True):
        assert own == pytest.approx(theirs, abs=2 * ROUNDING)
    loss = PolicyLoss("vanilla")
    assert_equal_gradients(gradients(backend, samples, loss), expected_gradients(alone, samples, loss))


def assert_equal_gradients(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() >= expected.keys()
    for name, gradient in expected.items():
        error, most = (found[name] - gradient).norm(), ROUNDING * (2 if name.endswith(CANCELLING) else 1)
        assert error <= most * gradient.norm() + 1e-9, f"{name}: {error} of {gradient.norm()}"


def expected_gradients(backend: TorchBackend, samples: Sequence[Sample], loss: LossFunction) -> dict[str, Tensor]:
    backend._optimizer.clear_gradients()
    with backend._positionwise.running():
        accumulate_gradients(backend._positionwise, mini_batch(samples, loss), loss, backend._cut(samples))
    return {name: value.grad.cpu() for name, value in backend.model.named_parameters() if value.grad is not None}


def gradients(backend: MegatronBackend, samples: Sequence[Sample], loss: LossFunction) -> dict[str, Tensor]:
    """Complete gradients under the names in memory, before the optimizer has used them."""
    batch = mini_batch(samples, loss)
    parts = [_part(batch, own, loss) for own in assign(samples, len(backend._reporting), loss.scope)]
    arguments = [(backend._number, *parts[group], loss) for group in backend._group_of]
    facts = backend._model.facts()
    found = {name: torch.full(facts[name].shape, torch.nan) for name in backend._model.weights.memory_names}
    for own_parts in backend._ranks.each(_gradients_of_rank, arguments):
        for name, box, values in own_parts:
            if name not in found:  # of a layer for multi-token prediction
                found[name] = torch.full(facts[name].shape, torch.nan)
            found[name][tuple(slice(start, start + length) for start, length in box)] = values
    return found


def _gradients_of_rank(ranks: Ranks, number: int, batch: MiniBatch, own: Sequence[int], loss: LossFunction):
    from agentrl.backends.megatron.weights.mapping import in_memory

    model = ranks.held[number]
    model.accumulate(batch, own, loss)
    found = []
    for each in model.weights.parameters:
        if not each.value.requires_grad:
            continue
        gradient = model.optimizer.complete(each.value, own_shard(model, each.value))
        for part in each.parts:
            if part.is_first:
                stacked = in_memory(part, model._config.num_moe_experts or 0)
                values = part.view(gradient).reshape([length for _, length in stacked.box])
                found.append((stacked.name, stacked.box, values.cpu().clone()))
    return found


def own_shard(model, parameter: Tensor) -> Tensor | None:
    """The gradient of the values that this process updates; only they are summed over the copies."""
    from agentrl.backends.megatron.training.optimizer import _shard

    shard = _shard(model.optimizer._inner(parameter), parameter)
    return None if shard is None else parameter.main_grad.flatten()[shard.span]
