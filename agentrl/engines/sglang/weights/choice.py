"""Choice of the weight transfer from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.features import Features
from agentrl.engines.sglang.servers.place import are_remote
from agentrl.engines.sglang.weights.buckets import ReusedMemory, Shapes, in_own_memory
from agentrl.engines.sglang.weights.delta import DeltaTransfer
from agentrl.engines.sglang.weights.disk import DiskTransfer
from agentrl.engines.sglang.weights.nccl import GroupTransfer
from agentrl.engines.sglang.weights.shared_memory import allocate
from agentrl.engines.sglang.weights.tensor import TensorTransfer
from agentrl.engines.sglang.weights.transfer import WeightTransfer
from agentrl.errors import ConfigError, Kind

MEGABYTE = 2**20


def choose_transfer(
    config: SglangConfig, shapes: Shapes, features: Features, folder: Path, *, delta: bool = False
) -> WeightTransfer:
    """Return the transfer selected by `config.weight_transfer`.

    Args:
        shapes: shapes of the weights in the model's checkpoint, see `models.folder.checkpoint_shapes`.
        features: features of one server; all servers have equal features.
        folder: folder for weight files, readable by the servers.
        delta: whether only differences are sent (`rollout.weight_sync=delta`).

    Raises:
        ConfigError: the servers accept weights only from files, or do not accept differences.
    """
    dtype: torch.dtype | None = None if features.dtype == "auto" else getattr(torch, features.dtype)
    bucket_bytes = config.weight_bucket_mb * MEGABYTE
    shares_memory = (
        features.device == "cpu" and not config.urls and not are_remote()
    )  # for GPUs, weights are copied to GPU memory, so they need no shared host memory
    memory = ReusedMemory(allocate if shares_memory else in_own_memory)
    makers: dict[str, Callable[[], WeightTransfer]] = {
        "disk": lambda: DiskTransfer(shapes, dtype, bucket_bytes, folder),
        "tensor": lambda: TensorTransfer(shapes, dtype, bucket_bytes, memory),
        "group": lambda: GroupTransfer(shapes, dtype, bucket_bytes),
    }
    if delta:
        if features.pp_size > 1 or features.dp_size > 1:
            raise ConfigError.at(
                "rollout.weight_sync",
                Kind.NOT_SUPPORTED,
                f"rollout.weight_sync=delta does not support servers with pp_size {features.pp_size} and dp_size"
                f" {features.dp_size}: use rollout.weight_sync=full",
            )
        return DeltaTransfer(shapes, dtype, bucket_bytes)
    # SGLang 0.5.21 assigns sent weights by tensor-parallel rank only: for other parallelism, send weights as files
    in_files = features.pp_size > 1 or (features.dp_size > 1 and not features.dp_attention)
    if in_files and config.weight_transfer in ("tensor", "group"):
        raise ConfigError.at(
            "rollout.sglang.weight_transfer",
            Kind.NOT_SUPPORTED,
            f"rollout.sglang.weight_transfer={config.weight_transfer}: servers with pp_size {features.pp_size} and"
            f" dp_size {features.dp_size} take new weights from files only: choose disk",
        )
    automatic = "disk" if in_files else "tensor" if features.device == "cpu" else "group"
    return makers[automatic if config.weight_transfer == "auto" else config.weight_transfer]()
