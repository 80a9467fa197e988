"""Ulysses sequence parallelism: each rank computes a slice of the positions of the same samples (arXiv:2309.14509).

Axes: M packed tokens, H heads, D head size, N trained tokens, P ranks of a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from agentrl.backends.torch.peers import SequencePeers
from agentrl.errors import ConfigError, Kind

if TYPE_CHECKING:
    from agentrl.backends.torch.forward import PositionwiseModel

KEY = "ulysses_sequence_parallel_size"


class SequenceGroup(SequencePeers):
    """This rank's group of `size` neighbouring ranks. All ranks of the run create their groups at the same time."""

    def __init__(self, num_ranks: int, size: int, device: torch.device) -> None:
        mesh = init_device_mesh(device.type, (num_ranks // size, size), mesh_dim_names=("samples", "positions"))
        self.group = mesh["positions"].get_group()
        self.size, self.index = size, dist.get_rank(self.group)

    def all_positions(self, states_MHD: Tensor) -> Tensor:
        """See `SequencePeers.all_positions`."""
        num_tokens, _, dim = states_MHD.shape
        parts_PMHD = states_MHD.reshape(num_tokens, self.size, -1, dim).transpose(0, 1)
        return _exchanged(parts_PMHD, self.group).flatten(0, 1)

    def all_heads(self, states_MHD: Tensor) -> Tensor:
        """See `SequencePeers.all_heads`."""
        parts_PMHD = states_MHD.reshape(self.size, -1, *states_MHD.shape[1:])
        return _exchanged(parts_PMHD, self.group).transpose(0, 1).flatten(1, 2)

    def every_position(self, values: Tensor) -> Tensor:
        """See `SequencePeers.every_position`."""
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return torch.cat(parts)

    def joined(self, values: Tensor, own_N: Tensor) -> Tensor:
        """See `SequencePeers.joined`. The ranks compute the same loss, so each takes the gradient of its own values."""
        return joined(values, own_N, self.group)


def check_sequence(model: PositionwiseModel, size: int) -> None:
    """Check that the positions of a model's sequences can be divided among `size` ranks.

    Raises:
        ConfigError: the attention heads cannot be divided equally, or the model cannot run on packed tokens, or its
            position embeddings depend on the length of the sequence.
    """
    config = model.model.config.get_text_config()
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.num_attention_heads % size:
        raise ConfigError.at(
            KEY, Kind.WRONG_VALUE, f"`{KEY}={size}` does not divide the {config.num_attention_heads} attention heads"
        )
    if rope in ("dynamic", "longrope"):
        raise ConfigError.at(
            KEY, Kind.NOT_SUPPORTED, f"`{KEY}={size}` does not support position embeddings of type {rope}: set it to 1"
        )
    if not model.shares_prefixes:
        raise ConfigError.at(
            KEY,
            Kind.NOT_SUPPORTED,
            f"`{KEY}={size}` needs a model that can share prefixes (see the warning above): set it to 1",
        )


def joined(values: Tensor, own_N: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the values of all ranks of `group`, [N]. Each rank gets the gradient of its own `values`."""
    return cast(Tensor, _Joined.apply(values, own_N, group))  # type: ignore[no-untyped-call]  # untyped in torch


def _exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send `parts[p]` of `parts`, [P, ...], to rank p; return the received parts in order of the sending rank."""
    return cast(Tensor, _Exchange.apply(parts, group))  # type: ignore[no-untyped-call]  # untyped in torch


class _Exchange(torch.autograd.Function):
    """An all-to-all exchange of equal parts. The gradients are exchanged in the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:  # Any: as torch declares it
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients, ctx.group), None


class _Joined(torch.autograd.Function):
    """Values of all ranks, [N]. Each rank gets the gradient of its own values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, own_N: Tensor, group: dist.ProcessGroup) -> Tensor:  # Any: see above
        ctx.save_for_backward(own_N)
        joined_N = values.new_zeros(own_N.shape).masked_scatter(own_N, values)
        dist.all_reduce(joined_N, group=group)
        return joined_N

    @staticmethod
    def backward(ctx: Any, gradients_N: Tensor) -> tuple[Tensor, None, None]:
        (own_N,) = ctx.saved_tensors
        return gradients_N[own_N], None, None


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received
