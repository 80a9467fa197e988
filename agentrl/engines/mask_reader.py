"""Reads from a plain forward which causal mask, full or sliding, transformers gives to each attention layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from agentrl.engines.attention import UnfaithfulError
from agentrl.engines.forward import attention_implementation, configs_of

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a query sees a key: of (batch, head, query position, key position), as in transformers' masking_utils."""

PROBE = "agentrl_probe"


class _MaskReader:
    """Records which mask transformers makes for which layer of a plain forward."""

    def __init__(self) -> None:
        self.windows: dict[int, int | None] = {}
        self._masks: list[tuple[Tensor, int | None]] = []

    # Any: both methods have whatever signature transformers calls them with
    def make_mask(self, *args: Any, mask_function: MaskFunction, **kwargs: Any) -> Tensor:
        """A mask, remembered by its tensor."""
        kwargs["allow_is_causal_skip"] = False
        mask: Tensor = sdpa_mask(*args, mask_function=mask_function, **kwargs)
        self._masks.append((mask, _window_of(mask_function, kwargs.get("local_size"))))
        return mask

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Record the layer; its output is of no interest."""
        layer = getattr(module, "layer_idx", None)
        known = [window for mask, window in self._masks if mask is attention_mask]
        if not isinstance(layer, int) or layer in self.windows or not known:
            raise UnfaithfulError(f"layer {layer} of {type(module).__name__} does not use transformers' causal masks")
        self.windows[layer] = known[0]
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def learn_windows(model: PreTrainedModel) -> dict[int, int | None]:
    """Layer -> sliding window, from the masks transformers would use; None for full attention.

    Raises:
        UnfaithfulError: a layer has another mask, or there is no attention layer that could be read.
    """
    reader = _MaskReader()
    AttentionInterface.register(PROBE, reader.attend)
    AttentionMaskInterface.register(PROBE, reader.make_mask)
    with attention_implementation(configs_of(model), PROBE):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long, device=model.device), use_cache=False)
    if not reader.windows:
        raise UnfaithfulError("its layers do not use transformers' attention interface")
    return reader.windows


def _window_of(mask_function: MaskFunction, local_size: int | None) -> int | None:
    """The window of a mask, None for a plain causal one.

    Raises:
        UnfaithfulError: it is neither, such as attention in chunks.
    """
    far = 4 * (local_size or 64)
    queries = torch.linspace(0, far - 1, 61).long()[:, None]
    keys = torch.cat([torch.linspace(0, far - 1, 67).long(), queries[:, 0], queries[:, 0] - (local_size or 0)])
    keys = keys.clamp(min=0)[None]
    zero = torch.zeros((), dtype=torch.long)
    expected = (keys <= queries) & (keys > queries - (local_size or far))
    if not torch.equal(mask_function(zero, zero, queries, keys).expand_as(expected), expected):
        raise UnfaithfulError("a layer's mask is neither causal nor a causal sliding window")
    return local_size
