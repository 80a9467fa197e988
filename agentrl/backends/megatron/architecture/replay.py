"""Routers that use recorded experts, or record their own choice; see `backends.torch.routing_replay`.

Axes: M tokens that a router sees, S tokens of this process, L layers, K experts per token, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.hybrid import layer_of
from agentrl.backends.megatron.architecture.recomputed import PassValue
from agentrl.config.run import RoutedBy
from agentrl.errors import ConfigError, Kind

Choice = tuple[Tensor, Tensor]


class LayerReplay:
    """The expert choice of one router.

    Replaces megatron-core's `RouterReplay`, which needs recorded experts for every token.

    Attributes:
        layer: number of the layer in the complete model, from 0.
        wanted: [M, K], experts of the tokens of a pass, -1 where the router chooses; None: the router chooses all.
        used: [M, K], experts of the last pass.
    """

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.wanted: PassValue[Tensor] = PassValue()
        self.used: Tensor | None = None

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., Choice] | None = None,
    ) -> Choice:
        """Return scores and numbers of the chosen experts, [M, K], from the scores of all experts, [M, E]."""
        assert default_compute_topk is not None
        chosen = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        self.used = chosen[1]
        if (wanted_MK := self.wanted.read()) is None:
            return chosen
        experts_MK = self.used = torch.where(wanted_MK < 0, chosen[1], wanted_MK)
        return scores.gather(1, experts_MK), experts_MK


def check_replay(config: TransformerConfig, routed_by: RoutedBy) -> None:
    """Check that a model can use recorded experts.

    Raises:
        ConfigError: the model has no experts.
    """
    key = f"{routed_by}.routed_experts"
    if config.num_moe_experts is None:
        raise ConfigError.at(key, Kind.CONFLICT, f"`{key}` needs a mixture of experts")


def replaying(chunk: nn.Module) -> list[LayerReplay]:
    """Give each router of a chunk a `LayerReplay`, and return these objects. `chunk` may be a wrapper.

    Layers for multi-token prediction get none, because experts are recorded only for the other layers.
    """
    found = []
    for module in chunk.modules():
        if isinstance(module, TopKRouter) and not module.is_mtp_layer:
            router: Any = module  # Any: megatron-core is untyped
            router.router_replay = LayerReplay(layer_of(router, getattr(chunk, "module", chunk)))
            found.append(router.router_replay)
    return found


def give(
    replays: Sequence[LayerReplay],
    experts_SLK: Tensor | None,
    rank: int,
    size: int,
    num_experts: int,
    *,
    keeps: bool,
) -> None:
    """Begin a forward pass with the experts of its tokens.

    Args:
        rank, size: the tokens are cut into `size` slices; the routers of this process see slice `rank`.
        keeps: whether a backward pass follows.

    Raises:
        ValueError: the experts do not fit the model.
    """
    own_SLK = None if experts_SLK is None else experts_SLK.chunk(size)[rank].long()
    for replay in replays:
        if own_SLK is not None and (replay.layer >= own_SLK.shape[1] or own_SLK.max() >= num_experts):
            raise ValueError(f"routed experts of {own_SLK.shape[1]} layers, up to {int(own_SLK.max())}, do not fit")
        replay.wanted.begin(None if own_SLK is None else own_SLK[:, replay.layer], keeps=keeps)
