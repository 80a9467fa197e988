"""Experts that the routers of all processes choose in the passes of `score`.

Axes: S tokens of this process, M tokens of a micro-batch on all processes, L layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.backends.megatron.architecture.replay import LayerReplay
from agentrl.backends.megatron.training.batches import PackedBatch
from agentrl.backends.torch.recorded_experts import by_path

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


class Recorder:
    """Experts that the passes of one call of `score` use. A process records the experts of its own tokens and layers.

    Attributes:
        passes: for each pass, the experts of each sample's `used_tokens`, [T', L, K]; filled by `collect`.
    """

    def __init__(self, config: TransformerConfig, device: torch.device) -> None:
        self.passes: list[list[Tensor]] = []
        self._shape, self._device = (config.num_layers, config.moe_router_topk), device
        self._columns = parallel_state.get_tensor_model_parallel_group()
        self._found: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # pass -> places, layers, experts

    def keep(self, number: int, batch: PackedBatch, replays: Sequence[LayerReplay]) -> None:
        """Keep the experts that these layers used in a pass."""
        found = self._found.setdefault(number, [])
        places = batch.places.chunk(self._columns.size())[self._columns.rank()]
        if used := [replay.used for replay in replays if replay.used is not None]:
            used_SLK = torch.stack(used, dim=1).to("cpu", torch.int16)  # one copy for all layers
            layers = torch.tensor([replay.layer for replay in replays])
            found.append((places[places >= 0], layers, used_SLK[places >= 0]))

    def collect(self, paths: Sequence[Sequence[Tensor]], *, keeps: bool) -> None:
        """Join the experts that all processes recorded. All processes call this together.

        Args:
            paths: `PackedBatch.paths` of each pass.
            keeps: whether this process keeps the result in `passes`.
        """
        for number, of_pass in enumerate(paths):
            found_MLK = torch.zeros(1 + max(int(path[-1]) for path in of_pass), *self._shape, dtype=torch.int32)
            for places, layers, used_SLK in self._found.pop(number):
                found_MLK[places[:, None], layers] = used_SLK.int()
            experts_MLK = found_MLK.to(self._device)
            dist.all_reduce(experts_MLK, group=parallel_state.get_tensor_and_context_parallel_group())
            dist.all_reduce(experts_MLK, group=parallel_state.get_pipeline_model_parallel_group())
            if keeps:
                self.passes.append(by_path(experts_MLK, of_pass))
