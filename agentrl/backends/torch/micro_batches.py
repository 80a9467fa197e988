"""Which samples of a mini-batch are computed together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl.backends.packing import computed_alike, pack, pack_shared
from agentrl.config.actor import ActorConfig
from agentrl.samples import Sample

CPU_TOKENS = 2048
"""Tokens from which on a CPU is no faster with a larger micro-batch, but slower: its caches no longer hold it."""

KEYS_A_TOKEN = {"cpu": 64}
"""Copied keys and values that take as much memory as all else of one token; on other devices 16, as there each head has
copies of its own (docs/gpu.md has the figures)."""


def cut(samples: Sequence[Sample], config: ActorConfig, shares_prefixes: bool, device: torch.device) -> list[list[int]]:
    """Micro-batches of the samples that train something, as indices."""
    trained = [index for index, sample in enumerate(samples) if sample.num_trained_tokens]
    max_tokens = config.ppo_max_token_len_per_gpu if config.use_dynamic_bsz else None
    max_samples = config.ppo_micro_batch_size_per_gpu
    enough_tokens = min(max_tokens, CPU_TOKENS) if max_tokens and device.type == "cpu" else max_tokens
    if shares_prefixes:
        sequences = [computed_alike(samples[index]) for index in trained]
        packs = pack_shared(sequences, max_tokens, max_samples, enough_tokens, KEYS_A_TOKEN.get(device.type, 16))
    else:
        packs = pack([len(samples[index].token_ids) for index in trained], enough_tokens, max_samples)
    return [[trained[number] for number in numbers] for numbers in packs]
