"""Count the weights of any transformers model, built on the meta device. The import is slow: it loads torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.plan.counts import assembled, sizes_of
from agentrl.plan.shapes import PARTS, Shape, Weights

_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_PATTERNS = {
    "norms": r"norm|\bln_",
    "shared": r"shared_expert",
    "experts": r"\bexperts?\b",
    "router": r"mlp\.gate\.|router|block_sparse_moe\.gate\.",
    "attention": r"attn|attention",
}
"""Part of a layer -> pattern of the names of its weights. Patterns are tried in this order; other weights are dense."""


def counted(content: Mapping[str, object]) -> Shape:
    """Return the shape of a model.

    Args:
        content: the content of its `config.json`.

    Raises:
        ValueError: transformers does not know the model, or cannot build it.
    """
    try:
        config = AutoConfig.for_model(**content)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (TypeError, KeyError, AttributeError) as error:  # errors of transformers for wrong entries
        raise ValueError(f"transformers cannot build this model: {error}") from error
    named = {name: value.numel() for name, value in model.named_parameters()}
    entries: dict[str, Any] = config.get_text_config().to_dict()  # Any: entries of config.json
    last = max((int(found[1]) for name in named if (found := _LAYER.search(name))), default=-1)
    layers = [
        _parts((name, size) for name, size in named.items() if _layer(name) == layer) for layer in range(last + 1)
    ]
    outer = {name: size for name, size in named.items() if _layer(name) is None}
    head = model.get_output_embeddings()
    names = {id(value): name for name, value in model.named_parameters()}
    return assembled(
        {**entries, **{key: content[key] for key in ("dtype", "torch_dtype") if key in content}},
        sizes_of(entries),
        layers=layers,
        outer=_outer(outer, names.get(id(model.get_input_embeddings().weight)), head and names.get(id(head.weight))),
    )


def _layer(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _outer(named: Mapping[str, int], embeddings: str | None, head: str | None) -> Weights:
    head_size = named.get(head or "", 0) if head != embeddings else 0
    rest = sum(named.values()) - named.get(embeddings or "", 0) - head_size
    return Weights(embeddings=named.get(embeddings or "", 0), head=head_size, norms=rest)


def _parts(named: Iterable[tuple[str, int]]) -> Weights:
    found = dict.fromkeys(PARTS, 0)
    for name, size in named:
        found[_part(name)] += size
    return Weights(**found)


def _part(name: str) -> str:
    return next((part for part, pattern in _PATTERNS.items() if re.search(pattern, name)), "dense")
