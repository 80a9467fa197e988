"""Weight transfer in HTTP requests, which contain CUDA handles, names of shared memory, or the bytes of the weights."""

from __future__ import annotations

import asyncio
import base64
import pickle
from types import SimpleNamespace

import torch
from torch import Tensor

from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.buckets import Bucket, BucketTransfer
from agentrl.engines.sglang.weights.shared_memory import Name, in_shared_memory
from agentrl.engines.sglang.weights.transfer import time_for


class TensorTransfer(BucketTransfer):
    """Weight transfer in HTTP requests, see `WeightTransfer`.

    For servers on GPUs, the buckets are copied to this process's GPU and shared by CUDA IPC, within one machine only.
    CPU servers open a bucket by name if it was allocated in shared memory. Otherwise the bucket's bytes are pickled.
    """

    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """See `BucketTransfer.transmit`."""
        # the copy on the GPU must stay alive until the server has answered
        shared = None if replica.features.device == "cpu" else bucket.data.cuda()
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
    """Return the payload of each tensor-parallel rank. A handle can be opened only once, so each rank gets its own."""
    if shared is None:
        data: object = Name(bucket.data) if in_shared_memory(bucket.data) else bucket.data
        return [as_text(_payload(bucket, data)) for _ in range(num_ranks)]
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.utils.patch_torch import monkey_patch_torch_reductions

    monkey_patch_torch_reductions()  # identifies a GPU by UUID, because the GPU's index may differ in the server
    torch.cuda.synchronize()
    payload = _payload(bucket, shared)
    return [MultiprocessingSerializer.serialize(payload, output_str=True) for _ in range(num_ranks)]


def as_text(payload: object) -> str:
    """Return a payload in the form that servers on the CPU and servers on other machines can read."""
    return base64.b64encode(pickle.dumps(payload, protocol=5)).decode()


def _payload(bucket: Bucket, data: object) -> dict[str, object]:
    """Payload as in sglang/srt/weight_sync/tensor_bucket.py; `SimpleNamespace` replaces SGLang's metadata class."""
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
