"""Host memory that a server on this machine opens by name, so that the bytes need not be sent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_storage_filename, rebuild_tensor, rebuild_typed_storage

from agentrl.engines.sglang.weights.buckets import in_own_memory

FOLDER = Path("/dev/shm")


def allocate(num_bytes: int) -> Tensor:
    """Return uninitialised bytes in shared memory, or in private memory if the system has too little shared memory.

    torch starts a helper process, which frees the memory when no other process uses it, even if the trainer was killed.
    """
    if not FOLDER.is_dir() or shutil.disk_usage(FOLDER).free < num_bytes:
        return in_own_memory(num_bytes)
    storage = torch.UntypedStorage._new_using_filename_cpu(num_bytes)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def in_shared_memory(data: Tensor) -> bool:
    """Whether `data` is in shared memory."""
    shared: bool = data.is_shared()  # type: ignore[no-untyped-call]  # torch does not type it
    return shared


class Name:
    """Pickles the name of shared bytes. Unpickling opens the bytes as a tensor; each pickle can be unpickled only once.

    The format is that of torch's `file_system` sharing (`torch.multiprocessing`), which SGLang accepts.
    """

    def __init__(self, data: Tensor) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # Any: as in pickle
        storage = self._data.untyped_storage()
        # the reader removes one reference when it opens the storage
        storage._shared_incref()  # type: ignore[no-untyped-call]  # torch does not type it
        opened = _Call(rebuild_storage_filename, torch.UntypedStorage, *storage._share_filename_cpu_())
        typed = _Call(rebuild_typed_storage, opened, torch.uint8)
        return rebuild_tensor, (torch.Tensor, typed, (0, (len(self._data),), (1,), False))


class _Call:
    """An object whose pickle is a function call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._reduced
