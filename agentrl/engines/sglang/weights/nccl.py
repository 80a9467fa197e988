"""Weight transfer through process groups: a broadcast to the ranks of each server."""

from __future__ import annotations

import torch

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.replica import Replica
from agentrl.engines.sglang.weights.buckets import Bucket, BucketTransfer, ReusedMemory, Shapes
from agentrl.engines.sglang.weights.process_group import ServerGroup
from agentrl.engines.sglang.weights.transfer import time_for


class GroupTransfer(BucketTransfer):
    """Weight transfer by broadcast, see `WeightTransfer`: gloo for servers on the CPU, NCCL for GPUs.

    Each server has a separate group with this process. In one common group, all servers would wait in the broadcast for
    a failed server. The drawback: this process sends the weights once per server.
    """

    def __init__(self, shapes: Shapes, dtype: torch.dtype | None, bucket_bytes: int) -> None:
        super().__init__(shapes, dtype, bucket_bytes, ReusedMemory())
        self._groups: dict[Replica, ServerGroup] = {}

    async def transmit(self, replica: Replica, bucket: Bucket, version: str | None) -> None:
        """See `BucketTransfer.transmit`."""
        try:
            group = await self._group(replica)
            body = {
                "names": [entry.name for entry in bucket.entries],
                "dtypes": [str(entry.dtype).removeprefix("torch.") for entry in bucket.entries],
                "shapes": [list(entry.shape) for entry in bucket.entries],
                "group_name": group.name,
                "load_format": "flattened_bucket",
                "flush_cache": False,
                "weight_version": version,
            }
            timeout_s = time_for(bucket.data.nbytes)
            asking = replica.client.post("/update_weights_from_distributed", body, timeout_s=timeout_s)
            await group.broadcast(bucket.data, asking)
        except ServerError:
            await self.forget(replica)  # the state of a failed group is unknown: the next update creates a new group
            raise

    async def forget(self, replica: Replica) -> None:
        """Leave the replica's group."""
        if group := self._groups.pop(replica, None):
            await group.close()

    async def close(self) -> None:
        """Leave all groups and free the copy of the weights."""
        await super().close()
        for replica in list(self._groups):
            await self.forget(replica)

    async def _group(self, replica: Replica) -> ServerGroup:
        if replica not in self._groups:
            backend = "gloo" if replica.features.device == "cpu" else "nccl"
            group = self._groups[replica] = ServerGroup(replica.client, replica.features.tp_size, backend)
            await group.open()
        return self._groups[replica]
