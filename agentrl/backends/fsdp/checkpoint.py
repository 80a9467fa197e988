"""Checkpoints of a sharded model: rank 0 writes a Hugging Face folder, all ranks write the optimizer state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from agentrl.backends.fsdp.sharding import host_copy, local_part, parts
from agentrl.backends.torch.checkpoint import STATE_FILE, filled, write_errors
from agentrl.backends.torch.shards import SHARDS
from agentrl.errors import ConfigError
from agentrl.models.adapters import has_adapter, write_adapter
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.loading import quiet_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Item = TypeVar("Item")
FILE_BYTES = 2**32
"""Largest size of a weight file in bytes, unless one weight is larger. Rank 0 collects a whole file in memory."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """State that one rank writes to a checkpoint.

    Attributes:
        model: the model. Only its configuration and the names of its weights are used, not their values.
        weights: the shards to write, by name. Only the first copy (replica) of the weights is written, so `weights` is
            empty on the ranks of other copies.
        optimizer: the tensors of the optimizer's state; their names are `<parameter>/<key>`. None for a model that is
            not trained.
        rest: the rest of the state, which is the same on every rank.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] | None
    rest: dict[str, Any]  # Any: values that torch.save can write

    def copied(self, host: DeviceMesh) -> SavedState:
        """Return the same state with copies of all tensors in CPU memory; `host`: mesh of all ranks, on CPUs."""
        weights = {name: host_copy(value, host) for name, value in self.weights.items()}
        optimizer = self.optimizer and {name: host_copy(value, host) for name, value in self.optimizer.items()}
        return replace(self, weights=weights, optimizer=optimizer)


def write_checkpoint(folder: Path, state: SavedState, group: dist.ProcessGroup) -> None:
    """Write a checkpoint into `folder`; every rank calls this function with its own part of the state.

    Raises:
        ConfigError: on all ranks, if one of them cannot write its part.
    """
    with failing_together(group), read_to_the_end(_complete_weights(state.weights, group)) as weights:
        if dist.get_rank() == 0:
            _write_files(folder, state, weights)
    if state.optimizer is not None:
        _write_shards(folder, state.optimizer, group)


@contextmanager
def failing_together(group: dist.ProcessGroup) -> Iterator[None]:
    """Raise a ConfigError of one rank on all ranks; all ranks enter and leave the block together."""
    own: ConfigError | None = None
    try:
        yield
    except ConfigError as error:
        own = error
    found: list[ConfigError | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group)
    for failed in found:
        if failed is not None:
            raise failed


@contextmanager
def read_to_the_end(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """After the block or an error, read the rest of `items`, because all ranks must exchange every item."""
    try:
        yield items
    finally:
        for _ in items:
            pass


def _complete_weights(weights: dict[str, Tensor], group: dist.ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    """Yield the complete weights, in CPU memory, on rank 0. The other ranks send their parts and yield nothing."""
    for name, value in weights.items():
        if dist.get_rank() == 0:
            yield name, _received(value, group)
        elif isinstance(value, DTensor) and local_part(value).numel():
            dist.send(_bytes(local_part(value).detach().cpu()), 0, group)


def _received(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    if not isinstance(value, DTensor):
        return value.detach().cpu()
    complete, first = torch.empty(value.shape, dtype=value.dtype), 0
    for rank, shape in enumerate(parts(value)):
        rows = complete[first : first + shape[0]]
        first += shape[0]
        if rank == 0:
            rows.copy_(local_part(value).detach())
        elif rows.numel():
            dist.recv(_bytes(rows), rank, group)
    return complete


def _bytes(value: Tensor) -> Tensor:
    return value.contiguous().flatten().view(torch.uint8)


def _write_files(folder: Path, state: SavedState, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write all files except the optimizer state."""
    with write_errors(folder), filled(folder):
        write_model(folder, state.model, weights)
        if state.tokenizer is not None:
            state.tokenizer.save_pretrained(folder)
        torch.save(state.rest, folder / STATE_FILE)


def write_model(folder: Path, model: PreTrainedModel, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write configuration and weights as `save_pretrained` does, without the complete model in memory."""
    with quiet_transformers():
        if has_adapter(model):
            write_adapter(model, dict(weights), folder)
            return
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
    write_weights(folder, checkpoint_weights(model, weights))


def write_weights(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write safetensors files (their size: see `FILE_BYTES`), and an index if there are several files."""
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


def _write_shards(folder: Path, state: dict[str, Tensor], group: dist.ProcessGroup) -> None:
    """Write the optimizer state; every rank writes its part."""
    with write_errors(folder):
        try:
            save(state, checkpoint_id=folder / SHARDS, process_group=group)
        except CheckpointException as error:  # raised on all ranks
            raise next(iter(error.failures.values()))[0] from error
