"""Replace a model's attention, and find out which masks the model gives to its layers.

Transformers' own attention cannot use agentrl's layout of keys and values: the embedded engine caches keys and values
in blocks, and the torch backends share them between samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import sdpa_mask

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query position, key position) -> whether the query sees the key, as in transformers' masking_utils."""

PROBE = "agentrl_probe"

HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "use_cache", "cache_position", "return_dict"}
HARMLESS |= {"output_attentions", "output_hidden_states", "output_router_logits", "num_items_in_batch"}
"""Arguments that can be ignored. Sliding windows are read from the masks when the model is loaded. The other arguments
do not change the result in evaluation mode."""


class UnfaithfulError(Exception):
    """agentrl's attention cannot replace this model's attention; the message gives the reason."""


def configs_of(model: PreTrainedModel) -> list[PretrainedConfig]:
    """Return every configuration from which a layer of the model may read its attention implementation."""
    found = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    for part in model.modules():
        if isinstance(config := getattr(part, "config", None), PretrainedConfig):
            found[id(config)] = config
    return list(found.values())


@contextmanager
def attention_implementation(configs: Sequence[PretrainedConfig], name: str) -> Iterator[None]:
    """Use attention `name` inside the block, and restore the previous one afterwards.

    This sets the internal field, because the public property also visits sub-configurations and checks the name.
    """
    before = [config._attn_implementation_internal for config in configs]
    for config in configs:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def check_understood(layer: object, attention_mask: Tensor | None, others: Mapping[str, object]) -> None:
    """Reject a mask, or unknown arguments, from a layer to its attention: ignoring them would change the results.

    Raises:
        UnfaithfulError: there is a mask or an unknown argument; the message names the layer and unknown arguments.
    """
    unknown = {name for name, given in others.items() if given is not None} - HARMLESS
    if attention_mask is not None or unknown:
        raise UnfaithfulError(f"layer {layer} passes unknown arguments to its attention: {sorted(unknown)}")


def explicit_attention(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Compute attention step by step, for soft-capped scores (Gemma 2) or a learned sink per head (gpt-oss).

    Args:
        query: [R, K, Q, D]: for each of R rows and K key heads, Q = C * G queries of size D. C is the number of tokens
            in a row, G the number of query heads that share a key head.
        keys, values: [R, K, W, D], for W tokens.
        bias: [R, 1, Q, W], added to the scores.
        sinks: [K * G], one score per query head.
    """
    # contiguous, because matmul copies only some memory layouts, which would change the last bits of the result
    scores = query @ keys.transpose(2, 3).contiguous() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + bias
    if sinks is not None:
        rows, key_heads, queries, _ = scores.shape
        shared = sinks.reshape(1, key_heads, 1, -1).expand(rows, -1, queries * key_heads // sinks.numel(), -1)
        scores = torch.cat([scores, shared.reshape(rows, key_heads, queries, 1).to(scores.dtype)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
    return weights[..., : keys.shape[2]] @ values


class _MaskReader:
    """Records which mask transformers creates for which layer in a forward pass."""

    def __init__(self) -> None:
        self.windows: dict[int, int | None] = {}
        self._masks: list[tuple[Tensor, MaskFunction, int | None]] = []

    # Any: transformers determines the signatures of `make_mask` and `attend`
    def make_mask(self, *args: Any, mask_function: MaskFunction, **kwargs: Any) -> Tensor:
        """Create a mask, and remember its function."""
        kwargs["allow_is_causal_skip"] = False
        mask: Tensor = sdpa_mask(*args, mask_function=mask_function, **kwargs)
        self._masks.append((mask, mask_function, kwargs.get("local_size")))
        return mask

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Record the layer's window; the output is not used."""
        layer = getattr(module, "layer_idx", None)
        known = [(function, size) for mask, function, size in self._masks if mask is attention_mask]
        if not isinstance(layer, int) or layer in self.windows or not known:
            raise UnfaithfulError(f"layer {layer} of {type(module).__name__} does not use transformers' causal masks")
        self.windows[layer] = _window_of(*known[0])  # only masks in use count: Qwen2-MoE also makes an unused mask
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def learn_windows(model: PreTrainedModel) -> dict[int, int | None]:
    """Return layer -> sliding window, from transformers' masks; None for full attention.

    Raises:
        UnfaithfulError: a layer's mask is neither causal nor a causal window, or no layer uses transformers' attention
            interface.
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
    """Return the window of a mask, None for a plain causal mask.

    Raises:
        UnfaithfulError: the mask is neither causal nor a causal window, for example attention in chunks.
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


def windows_of_all_layers(model: PreTrainedModel) -> dict[int, int | None]:
    """Return layer -> sliding window for every layer, see `learn_windows`.

    Raises:
        UnfaithfulError: a layer uses earlier tokens without attention, for example by convolution or a recurrent state.
    """
    windows = learn_windows(model)
    num_layers: int = model.config.get_text_config().num_hidden_layers
    if windows.keys() != set(range(num_layers)):
        raise UnfaithfulError(f"{len(windows)} of its {num_layers} layers use transformers' attention")
    return windows
