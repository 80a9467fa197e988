"""Tokens that a device computes at a time, from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from agentrl.config.actor import ActorConfig
from agentrl.config.run import RunConfig
from agentrl.plan.layout import Layout

CPU_TOKENS = 2048
"""Tokens of the largest micro-batch on a CPU. Copied from `agentrl.backends.torch.batches`, which imports torch."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Size of the largest micro-batch, and number of micro-batches in a mini-batch.

    Attributes:
        tokens: tokens of the largest micro-batch on one device, after the positions were divided among devices.
        number: micro-batches in a mini-batch, for one copy of the model.
    """

    tokens: int
    number: int


def micro_batches(config: RunConfig, layout: Layout, actor: ActorConfig, *, on_cpu: bool) -> MicroBatches:
    """Return the micro-batches for rollouts that all have the maximum length."""
    longest = config.data.max_sequence_length
    groups = actor.ppo_mini_batch_size or config.data.train_batch_size
    samples = ceil(groups * config.group_size / layout.data_parallel)
    most = samples if actor.ppo_micro_batch_size_per_gpu is None else actor.ppo_micro_batch_size_per_gpu
    if actor.use_dynamic_bsz:
        slices = layout.context if layout.kind == "megatron" else 1
        limit = actor.ppo_max_token_len_per_gpu * slices
        most = min(most, max(1, (min(limit, CPU_TOKENS) if on_cpu else limit) // longest))
        tokens = max(longest, min(limit if not on_cpu else min(limit, CPU_TOKENS), samples * longest))
        if actor.ppo_micro_batch_size_per_gpu is not None:
            tokens = min(tokens, actor.ppo_micro_batch_size_per_gpu * longest)
    else:
        tokens = min(most, samples) * longest
    return MicroBatches(ceil(tokens / layout.context), ceil(samples / max(1, most)))
