"""Capabilities of the embedded torch engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.capabilities import EngineSpec
from agentrl.config.run import RunConfig

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.engines.torch.engine import TorchEngine


async def load(config: RunConfig, chat: ChatFormat) -> TorchEngine:
    """See `load_torch_engine`."""
    from agentrl.engines.torch.loader import load_torch_engine  # imports torch
    from agentrl.models.images import find_image_inputs

    images = find_image_inputs(config.model) if chat.takes_images else None
    return load_torch_engine(config.model, config.rollout, config.data.max_sequence_length, images)


SPEC = EngineSpec(
    load=load,
    options=frozenset({"device", "dtype", "max_num_seqs", "max_kv_tokens", "deterministic"}),
    images=True,
    deterministic=True,
    fixed_rows={"cpu": 64, "cuda": 256},
)
