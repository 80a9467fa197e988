"""A plugin of SGLang: plain memory for host caches, because page-locked memory needs a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def allocate_on_the_cpu() -> None:
    """Use plain memory for the host cache of routed experts under --device cpu."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

    ALLOC_MEMORY_FUNCS["cpu"] = plain_memory


def plain_memory(
    dims: Sequence[int],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: object,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """Has the signature of SGLang's allocators."""
    return torch.empty(dims, dtype=dtype, device=device)
