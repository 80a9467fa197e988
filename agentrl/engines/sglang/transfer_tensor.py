"""Weights to servers in requests: the bytes themselves to the CPU, handles of shared memory to this machine's GPUs."""

from __future__ import annotations

import asyncio
import base64
import pickle
from types import SimpleNamespace

import torch
from torch import Tensor

from agentrl.engines.sglang.buckets import Bucket
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.transfer import time_for
from agentrl.engines.sglang.transfer_buckets import BucketTransfer


class TensorTransfer(BucketTransfer):
    """See `WeightTransfer`.

    To servers on GPUs the buckets are copied to this process's GPU and shared by CUDA IPC: only within a machine.
    SGLang's MultiprocessingSerializer shares memory of the CPU only between a process and its children; a server that
    is another's child dies of it. So on the CPU the bytes are pickled.
    """

    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """See `BucketTransfer.transmit`."""
        shared = None if replica.features.device == "cpu" else bucket.data.cuda()  # lives until the server answered
        entries = await asyncio.to_thread(_serialized, bucket, shared, replica.features.tp_size)
        body = {
            "serialized_named_tensors": entries,
            "load_format": "flattened_bucket",
            "flush_cache": False,
            "weight_version": version,
        }
        await replica.client.post("/update_weights_from_tensor", body, timeout_s=time_for(bucket.data.nbytes))
        del shared


def _serialized(bucket: Bucket, shared: Tensor | None, num_ranks: int) -> list[str]:
    """What each tensor-parallel rank opens: a handle is opened once, bytes any number of times."""
    if shared is None:
        return [base64.b64encode(pickle.dumps(_payload(bucket, bucket.data), protocol=5)).decode()] * num_ranks
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

    monkey_patch_torch_reductions()  # names a GPU by its UUID: its number is another one in the server
    torch.cuda.synchronize()
    payload = _payload(bucket, shared)
    return [MultiprocessingSerializer.serialize(payload, output_str=True) for _ in range(num_ranks)]


def _payload(bucket: Bucket, data: Tensor) -> dict[str, object]:
    """As sglang/srt/weight_sync/tensor_bucket.py; a namespace in place of its metadata class, which is SGLang's own."""
    metadata, start = [], 0
    for entry in bucket.entries:
        end = start + entry.num_bytes
        metadata.append(
            SimpleNamespace(
                name=entry.name,
                shape=torch.Size(entry.shape),
                dtype=entry.dtype,
                start_idx=start,
                end_idx=end,
                numel=entry.num_bytes,
            )
        )
        start = end
    return {"flattened_tensor": data, "metadata": metadata}
