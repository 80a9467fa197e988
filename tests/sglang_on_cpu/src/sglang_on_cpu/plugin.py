"""A plugin of SGLang: plain memory for host caches, and processes that start as forks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence

import torch


def run_on_the_cpu() -> None:
    """Called by SGLang when it starts."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        allocate_on_the_cpu()
        fork_processes()


def fork_processes() -> None:
    """Start the scheduler and the detokenizer as forks, so that they do not import SGLang again. CUDA forbids that."""
    real = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: real("fork", force)


def allocate_on_the_cpu() -> None:
    """Use plain memory for the host cache of routed experts, because page-locked memory needs a GPU."""
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
