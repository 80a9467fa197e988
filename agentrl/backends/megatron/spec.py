"""Capabilities of the Megatron backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.backends.base import ModelRequest
from agentrl.capabilities import BackendSpec
from agentrl.config.run import RunConfig

if TYPE_CHECKING:
    from agentrl.backends.megatron.backend import MegatronBackend


def load(config: RunConfig, request: ModelRequest) -> MegatronBackend:
    """Load the model in the layout `actor.megatron` on the processes of the run."""
    from agentrl.backends.fsdp.joining import only_rank, ranks_of_run  # imports torch
    from agentrl.backends.megatron.backend import MegatronBackend
    from agentrl.backends.megatron.platform import check_version

    check_version()
    ranks = ranks_of_run(config) if config.trainer.num_processes > 1 else only_rank()
    return MegatronBackend(ranks, request, config.trainer.seed)


SPEC = BackendSpec(
    load=load,
    options=frozenset({"megatron", "share_prefixes", "freeze_modules", "param_offload", "optimizer_offload"}),
    optimizers=frozenset({"adamw", "muon"}),
    value_head=True,
    lora=True,
    routed_experts=True,
    copy_weights=True,
    several_processes=True,
    async_save=True,
    without=frozenset({"overlap_param_gather", "transformer_engine"}),
    python=(3, 12),
    modules=("megatron.core", "emerging_optimizers"),
    extra="megatron",
)
