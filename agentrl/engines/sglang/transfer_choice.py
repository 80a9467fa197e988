"""Which way new weights take, from the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.buckets import Shapes
from agentrl.engines.sglang.features import Features
from agentrl.engines.sglang.transfer import WeightTransfer
from agentrl.engines.sglang.transfer_disk import DiskTransfer
from agentrl.engines.sglang.transfer_group import GroupTransfer
from agentrl.engines.sglang.transfer_tensor import TensorTransfer

MEGABYTE = 2**20


def choose_transfer(config: SglangConfig, shapes: Shapes, features: Features, folder: Path) -> WeightTransfer:
    """The transfer that `config.weight_transfer` names.

    Args:
        shapes: of the weights in the model's checkpoint, `models.folder.checkpoint_shapes`.
        features: of any of the servers, which are alike.
        folder: for files, which the servers must see too.
    """
    dtype: torch.dtype | None = None if features.dtype == "auto" else getattr(torch, features.dtype)
    bucket_bytes = config.weight_bucket_mb * MEGABYTE
    makers: dict[str, Callable[[], WeightTransfer]] = {
        "disk": lambda: DiskTransfer(shapes, dtype, bucket_bytes, folder),
        "tensor": lambda: TensorTransfer(shapes, dtype, bucket_bytes),
        "group": lambda: GroupTransfer(shapes, dtype, bucket_bytes),
    }
    automatic = "tensor" if features.device == "cpu" else "group"
    return makers[automatic if config.weight_transfer == "auto" else config.weight_transfer]()
