"""Attention and norm in plain torch; megatron-core itself has only the versions of TransformerEngine.

Axes: S tokens of this process, B rows, H heads, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from agentrl.backends.megatron.training.slices import owned_positions
from agentrl.backends.torch.layout import Layout
from agentrl.backends.torch.shared_attention import packed_attention


class RMSNorm(nn.RMSNorm):
    """RMSNorm that tells megatron-core whether each process sees only a slice of the tokens (sequence parallelism)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=torch.cuda.current_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # read by megatron-core
        self._zero_centered = bool(config.layernorm_zero_centered_gamma)

    def forward(self, states: Tensor) -> Tensor:
        """Normalize the last dimension. Gemma stores the weight minus 1; 1 is added in float32, as in transformers."""
        if not self._zero_centered:
            return super().forward(states)
        found = rms_norm(states.float(), self.normalized_shape, 1.0 + self.weight.float(), self.eps)
        return found.type_as(states)


@dataclass
class Bounds(PackedSeqParams):  # type: ignore[misc]  # megatron-core is untyped
    """Where each packed sample starts and ends.

    Attributes:
        layout: which token attends to which; set if samples share prefixes. All tokens then count as one sample.
    """

    layout: Layout | None = None


class ScalarLayer(nn.Module):
    """The head of a critic or a reward model. All tensor-parallel processes have the complete head.

    Its linear layer has the same name as in transformers.
    """

    def __init__(self, config: TransformerConfig, *, bias: bool) -> None:
        super().__init__()
        device = torch.cuda.current_device()
        self.score = nn.Linear(config.hidden_size, 1, bias=bias, dtype=config.params_dtype, device=device)
        self.score.weight.is_embedding_or_output_parameter = True  # type: ignore[attr-defined]  # read by megatron-core


class PackedAttention(MegatronModule):  # type: ignore[misc]  # megatron-core is untyped
    """Causal attention of packed samples; value heads may be smaller than key heads (MLA).

    Samples may share prefixes (`Bounds.layout`). With context parallelism, each process has two pieces of every sample
    (see `training.slices`) and collects the keys and values of all processes.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        *_: object,
        softmax_scale: float | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        k_channels: int | None = None,
        **__: object,
    ) -> None:
        super().__init__(config=config)
        groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(required_pgs=["cp"])
        self._group = groups.cp
        self._scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        packed_seq_params: Bounds,
        **_: object,
    ) -> Tensor:
        """Return [S, H * D] for query, key and value [S, H, D]."""
        if packed_seq_params.layout is not None:
            return packed_attention(packed_seq_params.layout, query, key, value, self._scale).flatten(1)
        ends = (packed_seq_params.cu_seqlens_q // self._group.size()).tolist()
        return torch.cat([self._one(query[a:b], key[a:b], value[a:b]) for a, b in pairwise(ends)])

    def _one(self, query_SHD: Tensor, key_SHD: Tensor, value_SHD: Tensor) -> Tensor:
        size = self._group.size()
        if size == 1:
            return self._attended(query_SHD, key_SHD, value_SHD, None)
        positions = owned_positions(len(query_SHD) * size, size).to(query_SHD.device)
        order = positions.flatten().argsort()
        keys, values = (_gathered(part, self._group).flatten(0, 1)[order] for part in (key_SHD, value_SHD))
        visible = positions[self._group.rank()][:, None] >= torch.arange(len(keys), device=keys.device)
        return self._attended(query_SHD, keys, values, visible)

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        query_HSD, key_HSD, value_HSD = (part.transpose(0, 1)[None] for part in (query, key, value))
        found = scaled_dot_product_attention(
            query_HSD,
            key_HSD,
            value_HSD,
            attn_mask=visible,
            is_causal=visible is None,
            scale=self._scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found[0].transpose(0, 1).flatten(1)


def _gathered(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensors of all processes, stacked. The gradient of each tensor is summed over the processes."""
    return cast(Tensor, _Gathered.apply(own, group))  # type: ignore[no-untyped-call]  # untyped in torch


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:  # Any: as in torch
        ctx.group = group
        parts = own.new_empty(group.size(), *own.shape)
        dist.all_gather([*parts.unbind()], own.contiguous(), group=group)
        return parts

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients.contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.group.rank()], None
