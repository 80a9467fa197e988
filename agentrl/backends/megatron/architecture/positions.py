"""Rotary embeddings at given positions, for packed tokens of samples that share prefixes.

Axes: S tokens, P positions, D head size.
"""

from __future__ import annotations

from typing import Any

from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor, nn


class GivenPositions:
    """Gives the token positions of a pass to all rotary embeddings of a chunk, including those of latent attention.

    Attributes:
        wanted: [S], positions; None: megatron-core counts from the start of each sample. Keep `wanted` until the
            backward pass is over, because recomputed layers read it again.
    """

    def __init__(self, chunk: nn.Module) -> None:
        self.wanted: Tensor | None = None
        for module in chunk.modules():
            if isinstance(module, RotaryEmbedding):
                module.register_forward_hook(self._at_positions)

    def _at_positions(self, _: nn.Module, __: object, embeddings: Any) -> Any:  # Any: with YaRN also a scale
        if self.wanted is None:
            return embeddings
        if isinstance(embeddings, tuple):
            values_P11D, scale = embeddings
            return values_P11D[self.wanted], scale
        return embeddings[self.wanted]
