"""Capabilities of SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl.capabilities import EngineSpec
from agentrl.config.run import RunConfig

if TYPE_CHECKING:
    from agentrl.chat.format import ChatFormat
    from agentrl.engines.sglang.engine import SglangEngine


async def load(config: RunConfig, chat: ChatFormat) -> SglangEngine:
    """See `load_sglang_engine`."""
    from agentrl.engines.sglang.loader import load_sglang_engine  # imports torch

    longest = config.data.max_sequence_length
    return await load_sglang_engine(config.model, config.rollout, longest, config.trainer.run_dir)


SPEC = EngineSpec(
    load=load,
    options=frozenset(
        {"dtype", "max_num_seqs", "max_kv_tokens", "deterministic", "weight_sync", "routed_experts", "sglang"},
    ),
    images=False,  # SGLang re-tokenizes a context with images: tokens may differ from the sampled tokens
    deterministic=False,  # on the CPU, SGLang has no deterministic mode and ignores seeds
    checkpoint_weights=True,
    probed=True,
    colocate=True,
)
