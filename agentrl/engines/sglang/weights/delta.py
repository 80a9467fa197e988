"""Weight transfer that sends only the changed values, in HTTP requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.engines.sglang.client import RefusedError
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights import server_loader
from agentrl.engines.sglang.weights.buckets import Bucket, BucketTransfer, Shapes
from agentrl.engines.sglang.weights.difference import checksum, compare
from agentrl.engines.sglang.weights.tensor import as_text
from agentrl.engines.sglang.weights.transfer import time_for

LOADER = f"{server_loader.__name__}.{server_loader.load.__name__}"
"""Import path of the function that loads the sent weights in the servers."""
LONGEST_WORD = 8


@dataclass(frozen=True, slots=True)
class Update:
    """A new bucket, and its difference from the bucket that was sent before.

    Attributes:
        difference: from `compare`; None if there is no previous bucket, or if the difference has at least as many bytes
            as the bucket.
        base: checksum of the previous bucket.
        num_changed, num_compared: numbers of changed and of compared words (see the module `difference`); 0 without a
            previous bucket.
    """

    bucket: Bucket
    checksum: int
    difference: Tensor | None = None
    base: int | None = None
    num_changed: int = 0
    num_compared: int = 0

    def request(self, number: int, count: int, *, complete: bool) -> dict[str, object]:
        """Description of the bucket for `server_loader.load`."""
        return {
            "number": number,
            "count": count,
            "base": None if complete else self.base,
            "checksum": self.checksum,
            "word": _word(self.bucket),
            "num_bytes": self.bucket.data.nbytes,
            "entries": [
                (entry.name, entry.shape, str(entry.dtype).removeprefix("torch.")) for entry in self.bucket.entries
            ],
        }


def update_of(bucket: Bucket, before: Update | None) -> Update:
    """Compare a bucket with the bucket that was sent before."""
    total = checksum(bucket.data)
    if before is None or before.bucket.entries != bucket.entries:
        return Update(bucket, total)
    word = _word(bucket)
    num_changed, difference = compare(before.bucket.data, bucket.data, word)
    num_words = bucket.data.nbytes // word
    if difference.nbytes >= bucket.data.nbytes:
        return Update(bucket, total, num_changed=num_changed, num_compared=num_words)
    return Update(bucket, total, difference, before.checksum, num_changed, num_words)


def _word(bucket: Bucket) -> int:
    """Return the bytes of a word: the item size of the smallest dtype in the bucket."""
    return min(LONGEST_WORD, *(entry.dtype.itemsize for entry in bucket.entries))


def check_loader(replica: Replica) -> None:
    """Check that the server can apply differences.

    Raises:
        ServerError: the server was started without the needed option; the message names the option.
    """
    if LOADER not in replica.features.weight_loaders:
        raise RefusedError(
            f"{replica.client.url}: 'rollout.weight_sync=delta' needs a server started with --custom-weight-loader"
            f" {LOADER}, and agentrl installed in its environment"
        )


class DeltaTransfer(BucketTransfer):
    """Weight transfer of changed values, see `WeightTransfer`.

    Each server keeps the last weights in its host memory, with a checksum for each bucket. If the checksum is not the
    one that this process expects, because the server is new or lost an update, the complete bucket is sent.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype | None, bucket_bytes: int) -> None:
        super().__init__(shapes, dtype, bucket_bytes)
        self._updates: list[Update] = []
        self._compare_s = 0.0
        self._sent_bytes = 0

    async def prepare(self, buckets: Sequence[Bucket]) -> None:
        """See `BucketTransfer.prepare`."""
        started = time.perf_counter()
        self._updates = await asyncio.to_thread(_updates, buckets, self._updates)
        self._compare_s += time.perf_counter() - started

    async def transmit_all(self, replica: Replica, buckets: Sequence[Bucket], version: int) -> None:
        """See `BucketTransfer.transmit_all`."""
        check_loader(replica)
        await super().transmit_all(replica, buckets, version)
        for number in await self._wrong(replica):
            await self._post(replica, number, None, complete=True)
        if wrong := await self._wrong(replica):
            raise RefusedError(f"{replica.client.url}: {len(wrong)} of {len(buckets)} buckets have a wrong checksum")

    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """See `BucketTransfer.transmit`."""
        number = next(number for number, update in enumerate(self._updates) if update.bucket is bucket)
        await self._post(replica, number, version, complete=self._updates[number].difference is None)

    async def close(self) -> None:
        """Free the copy of the weights."""
        await super().close()
        self._updates = []

    def metrics(self) -> Mapping[str, float]:
        """Return the bytes sent and the seconds spent on comparing since the start.

        After at least two updates, also return the fraction of words that differ between the last two versions.
        """
        compared = sum(update.num_compared for update in self._updates)
        share = sum(update.num_changed for update in self._updates) / compared if compared else None
        counters = {"weight_sent_bytes": float(self._sent_bytes), "weight_compare_s": self._compare_s}
        return counters if share is None else {**counters, "weight_changed_share": share}

    async def _wrong(self, replica: Replica) -> list[int]:
        """Return the indices of the buckets whose current content the replica does not hold."""
        body = {"name": server_loader.CHECKSUMS}
        held = await replica.client.post_for_list("/get_weights_by_name", body)
        expected = [update.checksum for update in self._updates]
        if len(held) != len(expected):
            return list(range(len(expected)))
        return [number for number, total in enumerate(expected) if held[number] != total]

    async def _post(self, replica: Replica, number: int, version: str | None, *, complete: bool) -> None:
        update = self._updates[number]
        request = update.request(number, len(self._updates), complete=complete)
        data = update.bucket.data if complete or update.difference is None else update.difference
        ranks = await asyncio.to_thread(_as_texts, request, data, replica.features.tp_size)
        body = {
            "serialized_named_tensors": ranks,
            "load_format": LOADER,
            "flush_cache": False,
            "weight_version": version,
        }
        self._sent_bytes += sum(map(len, ranks))
        # the timeout allows for the complete bucket, because the server also reads and copies the complete bucket
        timeout_s = time_for(data.nbytes + update.bucket.data.nbytes)
        await replica.client.post("/update_weights_from_tensor", body, timeout_s=timeout_s)


def _updates(buckets: Sequence[Bucket], before: Sequence[Update]) -> list[Update]:
    padded = [*before, *[None] * len(buckets)]
    return [update_of(bucket, old) for bucket, old in zip(buckets, padded, strict=False)]


def _as_texts(request: Mapping[str, object], data: Tensor, num_ranks: int) -> list[str]:
    """Return the payload of each tensor-parallel rank: only the first rank gets the data."""
    name, nothing = json.dumps(request), torch.empty(0, dtype=torch.uint8)
    first, other = as_text([(name, data)]), as_text([(name, nothing)])
    return [first, *[other] * (num_ranks - 1)]
