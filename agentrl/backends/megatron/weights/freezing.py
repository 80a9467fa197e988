"""Frozen weights of a model in a parallel layout; see agentrl.backends.torch.freezing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor

from agentrl.backends.megatron.architecture.lora import keep_recomputable
from agentrl.backends.megatron.weights.mapping import Box, in_memory, memory_name
from agentrl.backends.megatron.weights.parts import BUFFER, Weights
from agentrl.backends.torch.freezing import KEY, all_frozen, matching_names
from agentrl.errors import ConfigError, Kind

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Groups of weights that are stored as one parameter in megatron-core."""
_CHUNK = 2**24


def freeze(chunks: Sequence[LanguageModule], weights: Weights, patterns: Sequence[str]) -> None:
    """Freeze every weight whose name in transformers, or the name of a module that contains it, matches a pattern.

    Raises:
        ConfigError: on all processes, if a pattern matches nothing or only a part of a parameter, or if no weight is
            left to train.
    """
    tied = chunks[0].share_embeddings_and_output_weights
    weights.frozen = _frozen_names(weights.memory_names, patterns, tied=tied)
    for each in weights.parameters:
        if memory_name(each.parts[0].name) in weights.frozen:
            each.value.requires_grad_(False)
    keep_recomputable(chunks)


def _frozen_names(memory_names: Sequence[str], patterns: Sequence[str], *, tied: bool) -> frozenset[str]:
    names = [name for name in memory_names if not name.endswith(BUFFER)]
    others = {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}
    found = {others.get(name, name) for name in matching_names([*names, *others], patterns)}
    if found >= {*names}:
        raise all_frozen()
    for name in sorted(found):
        if missing := {*names} & _stored_with(name) - found:
            text = f"`{KEY}` freezes '{name}' without '{min(missing)}': megatron-core has one weight for both"
            raise ConfigError.at(KEY, Kind.NOT_SUPPORTED, text)
    return frozenset(found)


def _stored_with(name: str) -> set[str]:
    for kinds in _TOGETHER:
        if found := re.search(rf"\.({'|'.join(kinds)})\.", name):
            return {f"{name[: found.start(1)]}{kind}{name[found.end(1) :]}" for kind in kinds}
    return set()


def fingerprint(weights: Weights) -> str:
    """Return a digest of the frozen weights, which is the same in every layout. All processes call this together."""
    names = sorted(weights.frozen)
    if not names:
        return ""
    facts = weights.facts()
    sums = torch.zeros(len(names), dtype=torch.long)
    for each in weights.parameters:
        for part in (in_memory(part, weights.num_experts) for part in each.parts if part.is_first):
            if part.name in weights.frozen:
                sums[names.index(part.name)] += _sum_of(part.view(each.value.detach()), part.box, part.shape)
    dist.all_reduce(sums, group=weights.group)
    listed = [(name, str(facts[name].dtype), [*facts[name].shape]) for name in names]
    return hashlib.sha256(f"{listed} {sums.tolist()}".encode()).hexdigest()


def _sum_of(values: Tensor, box: Box, shape: Sequence[int]) -> int:
    """Return a sum over all values, modulo 2^64: (bits of a value + 1) * (a number that depends on its position)."""
    rows = values.reshape(-1, box[-1][1])
    bits = rows.view({2: torch.int16, 4: torch.int32}[rows.element_size()])
    starts = _starts(box, shape).to(rows.device)
    columns = torch.arange(box[-1][0], sum(box[-1]), device=rows.device)
    total = 0
    step = max(1, _CHUNK // len(columns))
    for part, first in zip(torch.split(bits, step), torch.split(starts, step), strict=True):
        positions = first[:, None] + columns
        total += int(((part.long() + 1) * (positions * 0x9E3779B97F4A7C1 | 1)).sum())
    return (total + 2**63) % 2**64 - 2**63


def _starts(box: Box, shape: Sequence[int]) -> Tensor:
    """Return, for each row of a box, where column 0 of this row is in the flat weight.

    The box itself may lack column 0.
    """
    found = torch.zeros(1, dtype=torch.long)
    for (first, length), size in zip(box[:-1], shape[:-1], strict=True):
        found = (found[:, None] * size + torch.arange(first, first + length)).flatten()
    return found * shape[-1]
