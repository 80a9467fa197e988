"""Wrap chunks so that their gradients are summed over the data-parallel processes."""

from __future__ import annotations

from collections.abc import Sequence

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_model_config
from torch import nn

from agentrl.backends.megatron.training.optimizer import divides_state
from agentrl.config.actor import ActorConfig


def frozen(chunks: Sequence[nn.Module]) -> list[nn.Module]:
    """Set `requires_grad` to False for a model that is not trained; return its chunks."""
    return [chunk.requires_grad_(False) for chunk in chunks]


def with_gradients(chunks: Sequence[nn.Module], config: TransformerConfig, actor: ActorConfig) -> list[nn.Module]:
    """Wrap each chunk in `DistributedDataParallel`, which has memory for the gradients of the chunk and sums them."""
    options = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=divides_state(actor),
        overlap_grad_reduce=actor.megatron.overlap_grad_reduce,
    )
    wrapped = [
        DistributedDataParallel(config, options, chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]
    if actor.megatron.overlap_grad_reduce:  # a configuration rule allows only one chunk
        get_model_config(wrapped[0]).no_sync_func = wrapped[0].no_sync  # sum in the last micro-batch only
    return wrapped


def end_cycles(wrapped: Sequence[nn.Module]) -> None:
    """Let Python free the chunks, which are not used afterwards.

    After a backward pass, a chunk with experts is part of a reference cycle. The experts keep tensors of the pass. The
    autograd graph of these tensors has hooks that sum the chunk's gradients, and these hooks refer to the chunk. Python
    cannot see autograd's references, so it would never free the cycle.
    """
    for chunk in wrapped:
        vars(chunk).clear()
