"""What megatron-bridge itself makes of a model: weights that it loads and exports, on all ranks of a layout."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.backend import MegatronBackend
from agentrl.config.megatron import MegatronConfig


def differing(backend: MegatronBackend, folder: Path) -> list[str]:
    """Names of the parameters that the bridge loads from `folder` with other values than those in memory."""
    found = backend._ranks.each(_differing, [(backend._number, folder)] * backend._ranks.size)
    return [name for names in found for name in names]


def exported(backend: MegatronBackend, folder: Path) -> dict[str, Tensor]:
    """The weights in memory, as the bridge exports them in the form of `folder`."""
    found = backend._ranks.each(_exported, [(backend._number, folder)] * backend._ranks.size)
    for other in found[1:]:
        assert other.keys() == found[0].keys()
    return found[0]


def _differing(ranks: Ranks, number: int, folder: Path) -> list[str]:
    from agentrl.backends.megatron.architecture.build import build_chunks
    from agentrl.backends.megatron.platform import on_device
    from agentrl.backends.megatron.weights.mapping import mapped

    model = ranks.held[number]
    with on_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prediction = model.passes.prediction
        ahead = 0 if prediction is None else prediction.num_layers
        built = build_chunks(copy.copy(model._config), model.source.config, num_ahead=ahead)
        chunks = [_named_as_tied(chunk) for chunk in built]
        loaded = [each for chunk in chunks for each in mapped(chunk, model.source.config.vocab_size)]
        for each in loaded:
            each.value.data.fill_(torch.nan)
        _bridge(model, folder).load_hf_weights(chunks)
        pairs = zip(model.weights.parameters, loaded, strict=True)
        return [own.name for own, other in pairs if not _equal(own, other)]


def _exported(ranks: Ranks, number: int, folder: Path) -> dict[str, Tensor]:
    from agentrl.backends.megatron.platform import on_device

    model = ranks.held[number]
    with on_device(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chunks = [_named_as_tied(chunk) for chunk in _chunks(model)]
        found = _bridge(model, folder).export_hf_weights(chunks, cpu=True, show_progress=False)
        return {name: value.clone() for name, value in found}


def _bridge(model, folder: Path):
    from agentrl.backends.megatron.bridge import auto_bridge

    layout = MegatronConfig(use_mbridge=True)
    return auto_bridge(model.source.config, layout, "model.path").from_hf_pretrained(folder, dtype=model.source.dtype)


def _chunks(model) -> list[nn.Module]:
    return [chunk.module for chunk in model.passes.chunks]


def _named_as_tied(chunk: nn.Module) -> nn.Module:
    """The bridge reads this from the configuration, where its own models keep it."""
    chunk.config.share_embeddings_and_output_weights = chunk.share_embeddings_and_output_weights
    return chunk


def _equal(own, other) -> bool:
    """Compare a parameter without the rows that pad the vocabulary."""
    return all(torch.equal(part.view(own.value), part.view(other.value)) for part in own.parts)
