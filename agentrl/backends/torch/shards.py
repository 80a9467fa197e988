"""Read optimizer state that several ranks wrote (torch.distributed.checkpoint), without running code from its files."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from agentrl.errors import ConfigError

SHARDS = Path("trainer_state") / "shards"
_FILE = re.compile(r"__\d+_\d+\.distcp")
_OF_METADATA = {
    *("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta"),
    "_MEM_FORMAT_ENCODING",
}
_CLASSES = {
    *((metadata.__name__, name) for name in _OF_METADATA),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
}
"""Classes and functions that the index of a checkpoint may contain, besides dtypes."""


def read_shards(path: Path, parameters: Mapping[str, Tensor], group: Any = None) -> dict[str, Tensor]:
    """Read a checkpoint's optimizer state, for any number of ranks; return tensors by `<parameter>/<key>`.

    Args:
        parameters: parameters of this process by name, possibly sharded.
        group: process group of the ranks, which must all call this (Any: as in torch); None: one process reads alone.

    Raises:
        ConfigError: the state is missing or corrupt, or belongs to another model.
    """
    reader = _Reader(path / SHARDS)
    try:
        found = reader.read_metadata().state_dict_metadata
        state: dict[str, Any] = {name: _empty(name, saved, parameters) for name, saved in found.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # torch warns if one process reads alone
            load(state, storage_reader=reader, process_group=group, no_dist=group is None)
    except ConfigError:
        raise
    except (Exception, CheckpointException) as error:  # truncated or foreign files raise many kinds of errors
        reason = " ".join(str(error).split())[:150]
        raise ConfigError.keyless(f"{SHARDS} is incomplete or corrupt ({reason})") from error
    return state


def _empty(name: str, saved: object, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return a tensor into which a saved tensor is read: shaped and sharded like its parameter, or a single number."""
    parameter = parameters.get(name.rpartition("/")[0])
    if parameter is None or not isinstance(saved, metadata.TensorStorageMetadata):
        raise ConfigError.keyless(f"{SHARDS} belongs to another model: '{name}'")
    if parameter.shape == saved.size:
        return torch.zeros_like(parameter, dtype=saved.properties.dtype, requires_grad=False)
    if saved.size.numel() != 1:
        raise ConfigError.keyless(f"{SHARDS} belongs to another model: '{name}' has shape {tuple(saved.size)}")
    return torch.zeros(saved.size, dtype=saved.properties.dtype)


class _Reader(FileSystemReader):
    """Reads a checkpoint. Runs no code from the index, and refuses an index that names files outside the checkpoint."""

    def read_metadata(self, *_: Any, **__: Any) -> metadata.Metadata:  # Any: as torch declares it
        with (Path(self.path) / ".metadata").open("rb") as file:
            found: metadata.Metadata = _Unpickler(file).load()
        for info in found.storage_data.values():
            if not _FILE.fullmatch(info.relative_path):
                raise ValueError(f"it names the file '{info.relative_path}'")
        found.storage_meta = found.storage_meta or metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # Any: as pickle declares it
        if module == "pathlib._local":  # Python 3.13 writes this name
            module = "pathlib"
        if (module, name) in _CLASSES or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}")
