"""Routers with losses, or a bias, that balance the load of the experts.

Megatron-core computes the losses. This module scales the losses for micro-batches of different sizes, and excludes
padding.

Axes: M tokens that a router sees on this process, E experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.recomputed import PassValue

AUX_LOSS, Z_LOSS = "moe_aux_loss", "moe_z_loss"


@dataclass(frozen=True, slots=True, eq=False)
class RoutedTokens:
    """The tokens of a pass.

    Attributes:
        padding: [M] bool, tokens that belong to no sample.
        share: number of tokens of the micro-batch without padding, on all processes that compute the micro-batch,
            divided by `total`.
        total: number of tokens of the mini-batch without padding, on all processes.
    """

    padding: Tensor
    share: float
    total: int


class BalancedRouter(TopKRouter):  # type: ignore[misc]  # megatron-core is untyped
    """A router whose losses are means over the mini-batch: each micro-batch is weighted by its number of tokens.

    Attributes:
        of_pass: holds the tokens of a pass with gradients, and None in a pass without gradients.
        losses: name of a loss -> sum of the loss on this process, not multiplied by the coefficient.
    """

    _tokens: RoutedTokens | None

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.of_pass: PassValue[RoutedTokens] = PassValue()
        self.losses: dict[str, Tensor] = {}

    def routing(self, logits: Tensor, padding_mask: None = None) -> tuple[Tensor, Tensor]:
        """See `TopKRouter.routing`."""
        self._tokens = self.of_pass.read()
        mask = self._tokens.padding if self._tokens is not None and torch.is_grad_enabled() else None
        found: tuple[Tensor, Tensor] = super().routing(logits, padding_mask=mask)
        return found

    def attach_and_log_load_balancing_loss(
        self, activation: Tensor, aux_loss_coeff: float, aux_loss: Tensor, *_: object, **__: object
    ) -> Tensor:
        """Add this process's part of a micro-batch's load-balancing loss to the loss of the policy."""
        assert self._tokens is not None
        if not self._tokens.share:  # a micro-batch that is only padding has no loss
            return activation
        own = aux_loss * self._tokens.share
        return self._with_loss(activation, AUX_LOSS, own / aux_loss_coeff, aux_loss_coeff)

    def apply_z_loss(self, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Add the z-loss: the mean of logsumexp(logits)^2 over the tokens; `logits`: [M, E]."""
        coefficient = self.config.moe_z_loss_coeff
        if not coefficient or padding_mask is None or self._tokens is None:
            return logits
        squares_M = logits.logsumexp(-1).square().masked_fill(padding_mask, 0.0)
        return self._with_loss(logits, Z_LOSS, squares_M.sum() / self._tokens.total, coefficient)

    def _with_loss(self, activation: Tensor, name: str, loss: Tensor, coefficient: float) -> Tensor:
        self.losses[name] = self.losses.get(name, 0.0) + loss.detach().double()
        found: Tensor = MoEAuxLossAutoScaler.apply(activation, coefficient * loss)
        return found

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        if padding_mask is not None:  # megatron-core cannot apply a mask of this shape
            routing_map = routing_map & ~padding_mask[:, None]
        super()._apply_expert_bias(routing_map)


def balances(config: TransformerConfig) -> bool:
    """Whether the routers of a model have a loss, or a bias that changes."""
    if config.num_moe_experts is None:
        return False
    return any((config.moe_aux_loss_coeff, config.moe_z_loss_coeff, config.moe_router_bias_update_rate))


def expert_biases(chunk: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and value of each router bias in a chunk. The biases are buffers."""
    yield from ((name, value) for name, value in chunk.named_buffers() if name.endswith("expert_bias"))


def balanced_routers(chunk: nn.Module) -> list[BalancedRouter]:
    """Return the `BalancedRouter` modules of a chunk."""
    return [module for module in chunk.modules() if isinstance(module, BalancedRouter)]


def collect_losses(routers: Sequence[BalancedRouter], config: TransformerConfig) -> dict[str, float]:
    """Return the mean of each loss over the layers of the complete model; clear `BalancedRouter.losses`.

    All processes call this together.
    """
    coefficients = {AUX_LOSS: config.moe_aux_loss_coeff, Z_LOSS: config.moe_z_loss_coeff}
    names = [name for name, coefficient in coefficients.items() if coefficient]
    if not names:
        return {}
    sums = torch.tensor([sum(float(router.losses.get(name, 0.0)) for router in routers) for name in names])
    sums = sums.double().to(torch.cuda.current_device())
    dist.all_reduce(sums)
    for router in routers:
        router.losses.clear()
    return {name: float(value) / sum(config.moe_layer_freq) for name, value in zip(names, sums, strict=True)}
