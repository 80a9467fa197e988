"""Capabilities of the torch backend."""

from __future__ import annotations

from agentrl.backends.base import Backend, ModelRequest
from agentrl.capabilities import BACKEND_OPTIONS, BackendSpec
from agentrl.config.run import RunConfig


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
        routed_by=request.routed_by,
    )


def _sharded(config: RunConfig, request: ModelRequest) -> Backend:
    from agentrl.backends.fsdp.backend import FsdpBackend  # imports torch
    from agentrl.backends.fsdp.joining import ranks_of_run

    return FsdpBackend(ranks_of_run(config), request, config.trainer.seed)


SPEC = BackendSpec(
    load=load,
    options=frozenset(BACKEND_OPTIONS) - {"megatron"},
    optimizers=frozenset({"adamw", "muon"}),
    lora=True,
    value_head=True,
    routed_experts=True,
    copy_weights=True,
    several_processes=True,
    async_save=True,
)
