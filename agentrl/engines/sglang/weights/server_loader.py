"""Weight loader inside an SGLang server: keeps the last weights, applies differences to them, and loads the result.

The server runs `load` if it was started with `--custom-weight-loader` and the path of `load`. This module imports only
torch, the standard library and `difference`. An exception would end the server, so wrong weights do not raise one.
Wrong weights are not loaded, and `/get_weights_by_name` returns `NOT_HELD` in place of their checksum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from agentrl.engines.sglang.weights.difference import apply, checksum

CHECKSUMS = "agentrl.checksums"
"""Name under which `/get_weights_by_name` returns the checksums of the held buckets."""
NOT_HELD = -1
"""Reported checksum of a bucket that is not held."""

Request = dict[str, Any]  # Any: JSON. The fields are those of `delta.Update.request`
GetWeights = Callable[..., object]


class Model(Protocol):
    """The methods of an SGLang model that this module uses."""

    def load_weights(self, weights: list[tuple[str, Tensor]]) -> object:
        """Load weights that are named as in the model's checkpoint."""
        ...


class HeldBuckets:
    """The last buckets of weights that were received, in host memory.

    An instance is installed as the model's method `get_weights_by_name`.
    """

    def __init__(self, get_weights: GetWeights | None) -> None:
        self._get_weights = get_weights
        self._buckets: dict[int, tuple[Tensor, int]] = {}
        self._count = 0

    def __call__(self, name: str, *args: object, **options: object) -> object:
        """Return the checksums of all buckets if `name` is `CHECKSUMS`, otherwise the model's own answer."""
        if name == CHECKSUMS:
            return [self._buckets[number][1] if number in self._buckets else NOT_HELD for number in range(self._count)]
        return self._get_weights(name, *args, **options) if self._get_weights else None

    def update(self, request: Request, data: Tensor) -> Tensor | None:
        """Return the complete new bucket, [bytes] uint8.

        Return None if the new bucket has a wrong checksum, or if the difference does not belong to the held bucket.

        Args:
            data: [bytes] uint8 on the CPU: the complete bucket, or a difference if the request has a `base`.
        """
        self._count = request["count"]
        self._buckets = {number: each for number, each in self._buckets.items() if number < self._count}
        held, held_sum = self._buckets.pop(request["number"], (None, NOT_HELD))
        if request["base"] is None:
            held = data
        elif held is None or held_sum != request["base"]:
            return None
        else:
            apply(held, data, request["word"])
        if checksum(held) != request["checksum"]:
            return None
        self._buckets[request["number"]] = held, request["checksum"]
        return held


def load(model: Model, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Load one bucket. Each tensor-parallel rank calls this; the first rank has the data and holds the buckets.

    Args:
        named_tensors: one tensor, [bytes] uint8, which is empty except on the first rank; the tensor's name is the
            request as JSON.
    """
    ((text, data),) = named_tensors
    request: Request = json.loads(text)
    complete = _held_by(model).update(request, data.cpu()) if _rank() == 0 else None
    complete = _on_every_rank(complete, request["num_bytes"], data.device)
    if complete is not None:
        model.load_weights(list(_unpacked(complete, request["entries"])))


def _held_by(model: Any) -> HeldBuckets:  # Any: one of its methods is replaced
    held = getattr(model, "get_weights_by_name", None)
    if not isinstance(held, HeldBuckets):
        held = model.get_weights_by_name = HeldBuckets(held)
    return held


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def _on_every_rank(complete: Tensor | None, num_bytes: int, device: torch.device) -> Tensor | None:
    """Send the first rank's bucket to all ranks and return it, on `device`; None if the first rank has no bucket."""
    if complete is not None:
        complete = complete.to(device)
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return complete
    accepted = torch.tensor([complete is not None], dtype=torch.uint8, device=device)
    distributed.broadcast(accepted, 0)
    if not accepted.item():
        return None
    if complete is None:
        complete = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    distributed.broadcast(complete, 0)
    return complete


def _unpacked(data: Tensor, entries: Sequence[tuple[str, Sequence[int], str]]) -> Iterator[tuple[str, Tensor]]:
    start = 0
    for name, shape, dtype_name in entries:
        dtype = getattr(torch, dtype_name)
        end = start + math.prod(shape) * dtype.itemsize
        yield name, data[start:end].view(dtype).reshape(tuple(shape))
        start = end
