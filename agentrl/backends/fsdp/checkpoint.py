"""Checkpoints of a sharded model: a Hugging Face folder, and the optimizer state, written by all ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.state_dict_saver import save

from agentrl.backends.torch.shards import SHARDS
from agentrl.models.adapters import has_adapter, write_adapter_values
from agentrl.models.loading import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE_BYTES = 2**32
"""Bytes of a weight file: so much is in the memory of rank 0 while it is written."""


def write_model(folder: Path, model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write configuration and weights as `save_pretrained` does, without ever holding the complete model."""
    with quiet_transformers():
        if has_adapter(model):
            write_adapter_values(model, dict(weights), folder)
            return
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
    write_weights(folder, weights)


def write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write safetensors files of about `FILE_BYTES`, and their index if there are several."""
    files: list[list[str]] = []
    pending: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        save_file(pending, folder / f"part-{len(files)}.safetensors", metadata={"format": "pt"})
        files.append([*pending])
        pending.clear()

    for name, value in weights:
        if pending and sum(each.nbytes for each in pending.values()) + value.nbytes > FILE_BYTES:
            flush()
        pending[name] = value.contiguous()
        total += value.nbytes
    flush()
    if len(files) == 1:
        (folder / "part-0.safetensors").rename(folder / "model.safetensors")
        return
    names = [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
    for number, name in enumerate(names):
        (folder / f"part-{number}.safetensors").rename(folder / name)
    places = {weight: name for name, members in zip(names, files, strict=True) for weight in members}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def write_shards(folder: Path, state: dict[str, Any], group: Any) -> None:
    """Write the optimizer state of all ranks; every rank calls this. Any: as in torch."""
    save(state, checkpoint_id=folder / SHARDS, process_group=group)
