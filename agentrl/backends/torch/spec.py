"""Capabilities of the torch backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.backends.base import ModelRequest
from agentrl.capabilities import BACKEND_OPTIONS, BackendSpec
from agentrl.config.run import RunConfig

if TYPE_CHECKING:
    from agentrl.backends.torch.backend import TorchBackend


def load(config: RunConfig, request: ModelRequest) -> TorchBackend:
    """See `load_torch_backend`, and `load_scalar_backend` for a value head."""
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


SPEC = BackendSpec(
    load=load,
    options=frozenset(BACKEND_OPTIONS),
    lora=True,
    value_head=True,
    routed_experts=True,
    copy_weights=True,
)
