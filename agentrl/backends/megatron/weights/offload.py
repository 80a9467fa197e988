"""Keep the weights of a model's chunks in CPU memory while they are not used.

Megatron-core's parameters are views of large buffers. The storages of these buffers move, so all views stay valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn

from agentrl.backends.torch.cpu_offload import Moves


class StorageOffload:
    """Keeps the weights of chunks in CPU memory except while they are in use. Does nothing if `moves` is None.

    If megatron-core's `DistributedDataParallel` wraps the chunks, gradients use no memory while weights are offloaded.
    """

    def __init__(self, chunks: Sequence[nn.Module], moves: Moves | None) -> None:
        self._moves = moves
        tensors = [value for chunk in chunks for value in chunk.parameters()]
        wrapped = [chunk for chunk in chunks if isinstance(chunk, DistributedDataParallel)]
        buffers = [buffer for chunk in wrapped for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        self._storages = _storages(tensors) if moves else []
        self._gradients = _storages(buffer.grad_data for buffer in buffers) if moves else []
        self._numbers = {storage._cdata: number for number, (storage, _) in enumerate(self._storages)}
        self._saved: list[Tensor] = []
        self.put_away()

    def put_away(self) -> None:
        """Copy the values to CPU memory, and free the storages."""
        if self._moves is None or self._saved:
            return
        for storage, _ in self._storages:
            self._saved.append(self._moves.out(_bytes(storage)))
            storage.resize_(0)
        for storage, _ in self._gradients:
            storage.resize_(0)

    def fetch(self, *, gradients: bool = False) -> None:
        """Copy the values back. With `gradients`, also allocate the gradients; their content is undefined."""
        for storage, size in self._gradients if gradients else ():
            storage.resize_(size)
        for (storage, size), saved in zip(self._storages, self._saved, strict=False):
            storage.resize_(size)
            _bytes(storage).copy_(saved)
        self._saved.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the values on their device inside the `with` block."""
        self.fetch()
        try:
            yield
        finally:
            self.put_away()

    def readable(self, value: Tensor) -> Tensor:
        """Return a tensor's values from where they are now, on the device or the CPU. Do not change these values."""
        number = self._numbers.get(value.untyped_storage()._cdata)
        if number is None or not self._saved:
            return value.detach()
        saved = self._saved[number].untyped_storage()
        return torch.empty(0, dtype=value.dtype).set_(saved, value.storage_offset(), value.shape, value.stride())


def _storages(tensors: Iterable[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
    """Return the storages of tensors with their sizes, each once."""
    found = {value.untyped_storage()._cdata: value.untyped_storage() for value in tensors}
    return [(storage, storage.nbytes()) for storage in found.values()]


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
