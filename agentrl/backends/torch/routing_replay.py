"""Routing replay: a mixture of experts uses recorded experts for each token.

R3 (rollout routing replay, Ma et al. 2025, arXiv:2510.11370): the engine recorded the experts. R2: the policy recorded
them when it computed the old log-probabilities. In both cases the policy determines the weights of the experts: its
gate values for these experts, normalised as in the model, with gradients.

Axes: M tokens of a forward pass, L layers, K experts per token, E experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agentrl.backends.torch.batches import OnePass, Outputs, at_once
from agentrl.backends.torch.self_check import difference, unfaithful
from agentrl.config.run import RoutedBy
from agentrl.errors import ConfigError, Kind
from agentrl.models.attention import UnfaithfulError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYER = re.compile(r"\blayers\.(\d+)\.")


class RoutingReplay:
    """Replaces or records the expert choice of a model's routers. Does nothing without given experts or `recording`.

    A router is supported if its module has an attribute `experts` and calls `topk` once, over scores of shape [M, E].
    In transformers this holds for Qwen2-MoE, Qwen3-MoE, Mixtral, OLMoE, gpt-oss, DeepSeek-V3, GLM-4-MoE and most
    others. Each model is tested once, with a few tokens, inside `one_pass` (see `PositionwiseModel`). `routed_by`: see
    `ModelRequest`.

    Raises:
        ConfigError: the model has no experts, or chooses them in another way.
    """

    def __init__(self, model: PreTrainedModel, one_pass: OnePass = at_once, routed_by: RoutedBy = "rollout") -> None:
        self.records = routed_by == "actor"
        self._given: Tensor | None = None
        self._own: dict[int, Tensor] | None = None
        key = f"{routed_by}.routed_experts"
        self._blocks = _blocks(model)
        if not self._blocks:
            raise ConfigError.at(
                key,
                Kind.NOT_SUPPORTED,
                f"`{key}` needs a mixture of experts: no layer of {type(model).__name__} has `experts`",
            )
        for layer, block in self._blocks.items():
            vars(block)["forward"] = partial(self._forward, layer, block.forward)
        self._num_layers: int = model.config.get_text_config().num_hidden_layers
        self._num_experts = min(map(_num_experts, self._blocks.values()))
        try:
            with unfaithful(), torch.no_grad():
                one_pass(partial(self._try, model))
        except UnfaithfulError as error:
            raise ConfigError.at(
                key,
                Kind.NOT_SUPPORTED,
                f"`{key}`: the router of {type(model).__name__} is not supported ({error}): use a model"
                " built like Qwen3-MoE, Mixtral, gpt-oss or DeepSeek-V3",
            ) from error

    def give(self, experts_MLK: Tensor | None) -> None:
        """Set the experts for the tokens of the next forward pass. Where they are -1, the model chooses.

        If `experts_MLK` is None, the model chooses for all tokens. The experts stay set until the next call, on every
        thread, because the backward pass may use another thread.

        Raises:
            ValueError: the number of layers or experts does not fit this model.
        """
        if experts_MLK is not None:
            num_layers, top_k = experts_MLK.shape[1:]
            if num_layers <= max(self._blocks) or top_k != self._top_k or experts_MLK.max() >= self._num_experts:
                raise ValueError(
                    f"routed experts of {num_layers} layers, {top_k} per token, up to {int(experts_MLK.max())},"
                    " do not"
                    " fit"
                    f" this model: layers up to {max(self._blocks)}, {self._top_k} per token,"
                    f" {self._num_experts} experts"
                )
            experts_MLK = experts_MLK.to(self._device)
        self._given = experts_MLK

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the experts that the layers use; see `recorded`."""
        self._own = {}
        try:
            yield
        finally:
            self._own = None

    @property
    def is_recording(self) -> bool:
        """Whether experts are recorded."""
        return self._own is not None

    def recorded(self) -> Tensor:
        """Return the experts of the last pass, [M, layers, K] int32; 0 in layers without a router."""
        assert self._own
        one_MK = next(iter(self._own.values()))
        experts_MLK = one_MK.new_zeros(len(one_MK), self._num_layers, one_MK.shape[1], dtype=torch.int32)
        for layer, experts_MK in self._own.items():
            experts_MLK[:, layer] = experts_MK
        return experts_MLK

    def _forward(self, layer: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a layer's forward with replaced experts. `Any`: modules have different signatures."""
        if self._given is None and self._own is None:
            return forward(*args, **kwargs)
        wanted_MK = None if self._given is None else self._given[:, layer].long()
        with _Choice(_num_experts(self._blocks[layer]), wanted_MK) as choice:
            output = forward(*args, **kwargs)
        if len(choice.made) != 1:
            raise RuntimeError(f"layer {layer} selected experts {len(choice.made)} times, expected once")
        if self._own is not None:
            self._own[layer] = choice.made[0]
        return output

    def _try(self, model: PreTrainedModel) -> Outputs:
        """Test that the layers use the experts they are given; set K, the number of experts per token."""
        self._device = model.device
        token_ids = torch.arange(1, 6, device=self._device)[None]

        def states() -> Tensor:
            output: Tensor = model.base_model(input_ids=token_ids, use_cache=False)[0]
            return output

        with self.recording():
            alone = states()
            chosen_MLK = self.recorded()
        self._given = chosen_MLK
        repeated = difference(states(), alone)
        self._given = (chosen_MLK + 1) % self._num_experts
        changed = difference(states(), alone)
        self._given = None
        if repeated > 1e-5 or (changed < 1e-5 and self._num_experts > chosen_MLK.shape[2]):
            raise UnfaithfulError("its layers do not use the given experts")
        self._top_k = chosen_MLK.shape[2]
        return {}


class _Choice(TorchFunctionMode):
    """Finds the `topk` call by which a router chooses among its E experts, and replaces the chosen experts by `wanted`.

    `wanted`: [M, K]; where an entry is -1, or if `wanted` is None, the router's choice stays.

    Attributes:
        made: the experts of each choice, [M, K], after the replacement.
    """

    def __init__(self, num_experts: int, wanted: Tensor | None) -> None:
        super().__init__()
        self._num_experts, self._wanted = num_experts, wanted
        self.made: list[Tensor] = []

    # Any: as torch declares it
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].ndim != 2 or args[0].shape[1] != self._num_experts:
            return result
        indices = result.indices
        if self._wanted is not None:
            indices = torch.where(self._wanted < 0, indices, self._wanted)
            result = torch.return_types.topk((args[0].gather(1, indices), indices))  # `gather` keeps gradients
        self.made.append(indices)
        return result


def _blocks(model: nn.Module) -> dict[int, nn.Module]:
    """Return layer -> its module that has a router and experts."""
    found = ((_LAYER.search(f"{name}."), module) for name, module in model.named_modules())
    return {int(layer[1]): module for layer, module in found if layer and _num_experts(module)}


def _num_experts(block: nn.Module) -> int:
    number = getattr(getattr(block, "experts", None), "num_experts", 0)
    return number if isinstance(number, int) else 0
