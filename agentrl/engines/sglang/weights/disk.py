"""Weight transfer through files in a folder that all servers can read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from agentrl.engines.base import WeightStream
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.buckets import Bucket, Shapes, buckets_of, checked
from agentrl.engines.sglang.weights.transfer import flush, time_for, to_each


class DiskTransfer:
    """Weight transfer through safetensors files, see `WeightTransfer`.

    Each version is one folder. The folder of the previous version is removed when the next folder is complete.

    Args:
        shapes: shapes of the weights in the model's checkpoint.
        dtype: dtype of the written matrices; None keeps their dtype.
        bucket_bytes: approximate size of a file.
        folder: parent of the version folders; remote servers need the folder under the same path.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype | None, bucket_bytes: int, folder: Path) -> None:
        self._shapes, self._dtype, self._bucket_bytes, self._folder = shapes, dtype, bucket_bytes, folder.resolve()
        self._sent: tuple[Path, int] | None = None

    async def send(
        self, replicas: Sequence[Replica], weights: WeightStream, version: int, *, keep_cache: bool = False
    ) -> None:
        """See `WeightTransfer.send`."""
        path = await asyncio.to_thread(self._write, weights, version)
        self._sent = path, version  # set before older folders are removed: a replica may restart and read this folder
        await asyncio.to_thread(self._remove_all_but, path)
        await to_each(replicas, version, lambda replica: _load(replica, path, version, keep_cache=keep_cache))

    async def refresh(self, replica: Replica) -> None:
        """See `WeightTransfer.refresh`."""
        if self._sent:
            path, version = self._sent
            await to_each([replica], version, lambda one: _load(one, path, version, keep_cache=False))

    def metrics(self) -> Mapping[str, float]:
        """See `WeightTransfer.metrics`."""
        return {}

    async def close(self) -> None:
        """Remove the files."""
        if self._sent:
            await asyncio.to_thread(shutil.rmtree, self._sent[0], ignore_errors=True)
            self._sent = None

    def _remove_all_but(self, path: Path) -> None:
        """Remove all other version folders, also those of a killed run."""
        for other in self._folder.glob("version-*"):
            if other != path:
                shutil.rmtree(other)

    def _write(self, weights: WeightStream, version: int) -> Path:
        path, aside = self._folder / f"version-{version}", self._folder / ".writing"
        shutil.rmtree(aside, ignore_errors=True)
        named = checked(weights, self._shapes, self._dtype)
        try:
            aside.mkdir(parents=True)
            for number, bucket in enumerate(buckets_of(named, self._bucket_bytes), start=1):
                save_file(_tensors(bucket), aside / f"model-{number:05}.safetensors", metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise ServerError(f"rollout.sglang.weight_transfer=disk: cannot write to {aside}: {error}") from error
        except BaseException:
            shutil.rmtree(aside)
            raise
        shutil.rmtree(path, ignore_errors=True)
        return aside.rename(path)


async def _load(replica: Replica, path: Path, version: int, *, keep_cache: bool) -> None:
    body = {"model_path": str(path), "weight_version": str(version), "flush_cache": False, "load_format": "safetensors"}
    await replica.client.post(
        "/update_weights_from_disk", body, timeout_s=time_for(await asyncio.to_thread(_size, path))
    )
    if not keep_cache:
        await flush(replica.client)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def _tensors(bucket: Bucket) -> dict[str, torch.Tensor]:
    pieces = torch.split(bucket.data, [entry.num_bytes for entry in bucket.entries])
    pairs = zip(bucket.entries, pieces, strict=True)
    return {entry.name: piece.view(entry.dtype).reshape(entry.shape) for entry, piece in pairs}
