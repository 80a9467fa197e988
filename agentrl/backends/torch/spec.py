"""Capabilities of the torch backend."""

from __future__ import annotations

from agentrl.backends.base import Backend, ModelRequest
from agentrl.capabilities import BACKEND_OPTIONS, BackendSpec
from agentrl.config.rules.unused import wrong
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind


def load(config: RunConfig, request: ModelRequest) -> Backend:
    """Load the model in this process, or shard it over the processes of the run.

    See `load_torch_backend`, and `load_scalar_backend` for a value head.
    """
    if config.trainer.num_processes > 1:
        return _sharded(config, request)
    from agentrl.backends.torch.backend import load_scalar_backend, load_torch_backend  # imports torch

    model, actor, seed, key = request.model, request.actor, config.trainer.seed, request.key
    updates, trainable = request.total_updates, request.trainable
    if request.value_head:
        return load_scalar_backend(model, actor, total_updates=updates, seed=seed, trainable=trainable, key=key)
    return load_torch_backend(
        model,
        actor,
        total_updates=updates,
        seed=seed,
        trainable=trainable,
        key=key,
        routed_experts=request.routed_experts,
    )


def _sharded(config: RunConfig, request: ModelRequest) -> Backend:
    from agentrl.backends.fsdp.backend import FsdpBackend  # imports torch
    from agentrl.backends.fsdp.ranks import check_shared_folder, joined

    ranks, size = joined(), config.trainer.num_processes
    if ranks is None or ranks.size != size:
        found = "one process runs" if ranks is None else f"{ranks.size} processes run"
        text = f"{found}: start it with `agentrl train`, or with `torchrun --nproc-per-node {size} -m agentrl train`"
        raise ConfigError(wrong("trainer.n_gpus_per_node", text, Kind.CONFLICT, value=size))
    check_shared_folder(ranks, config.trainer.run_dir)
    return FsdpBackend(ranks, request, config.trainer.seed)


SPEC = BackendSpec(
    load=load,
    options=frozenset(BACKEND_OPTIONS) - {"megatron"},
    lora=True,
    value_head=True,
    routed_experts=True,
    copy_weights=True,
    several_processes=True,
    async_save=True,
)
