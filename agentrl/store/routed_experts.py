"""Routed experts, saved in the folder of the trajectories: `step-000012.experts.safetensors`, a tensor per trajectory.

Routed experts are the experts that a mixture-of-experts model selected for each token. The experts file is in
safetensors format. Its header holds a checksum of each tensor, and the file of trajectories holds the hash of that
header. So readers detect an experts file that is missing, damaged, or from another step. Readers map the experts file
into memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from agentrl.errors import DataError
from agentrl.types.rollout import Group
from agentrl.types.trajectory import Trajectory
from agentrl.utils.atomic_files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

SUFFIX = ".experts.safetensors"
_KINDS = {"torch.uint8": "U8", "torch.int16": "I16"}


def experts_path(path: Path) -> Path:
    """Return the path of the experts file for the rollouts in `path`."""
    return path.with_name(path.stem + SUFFIX)


def write_experts(path: Path, groups: Sequence[Group]) -> str | None:
    """Write the experts file for the rollouts that will be saved in `path`.

    Return the hash of the experts file's header. The caller saves this hash in the metadata of `path`.
    Return None and write nothing if no trajectory has routed experts.
    """
    known = ((name, trajectory.routed_experts) for name, trajectory in _named(groups))
    found = [(name, experts.contiguous()) for name, experts in known if experts is not None]
    # tensors with large elements first, so that each tensor is aligned to its element size
    tensors = dict(sorted(found, key=lambda entry: -entry[1].element_size()))
    if not tensors:
        return None
    header = _header(tensors)
    with atomic_file(experts_path(path)) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            file.write(tensor.numpy().data)
    return sha256(header).hexdigest()


def read_experts(path: Path, saved_hash: str, groups: Sequence[Group]) -> None:
    """Add the saved experts, as memory-mapped tensors, to the trajectories of `groups`, which were read from `path`.

    Raises:
        DataError: the experts file is missing, damaged, or was written with other rollouts.
    """
    from safetensors import SafetensorError, safe_open

    file_path = experts_path(path)
    try:
        if sha256(_read_header(file_path)).hexdigest() != saved_hash:
            raise DataError(f"{file_path}: the routed experts do not belong to '{path.name}'")
        with safe_open(file_path, "pt") as file:
            checksums, names = file.metadata(), set(file.keys())
            for name, trajectory in _named(groups):
                if name in names:
                    _give(trajectory, file.get_tensor(name), checksums[name])
    except FileNotFoundError as error:
        raise DataError(f"{file_path}: the routed experts of '{path.name}' are missing") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{file_path}: cannot read routed experts: {' '.join(str(error).split())}") from error


def remove_orphans(folder: Path) -> None:
    """Remove experts files whose file of trajectories was deleted or never completed."""
    for path in folder.glob(f"*{SUFFIX}"):
        if not path.with_name(path.name.removesuffix(SUFFIX) + ".parquet").exists():
            path.unlink()


def _named(groups: Sequence[Group]) -> Iterator[tuple[str, Trajectory]]:
    """Yield each trajectory with its name in the experts file: `<row of its rollout>/<index in the rollout>`."""
    rollouts = (rollout for group in groups for rollout in group.rollouts)
    for row, rollout in enumerate(rollouts):
        for number, trajectory in enumerate(rollout.trajectories):
            yield f"{row}/{number}", trajectory


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    entries: dict[str, object] = {
        "__metadata__": {name: str(crc32(tensor.numpy().data)) for name, tensor in tensors.items()}
    }
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _KINDS[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [start, end]}
    content = json.dumps(entries).encode()
    return content.ljust(-(-len(content) // 8) * 8)  # the format requires that tensors start at a multiple of 8 bytes


def _read_header(path: Path) -> bytes:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is cut off")
        return file.read(length)


def _give(trajectory: Trajectory, experts: Tensor, checksum: str) -> None:
    if crc32(experts.numpy().data) != int(checksum):
        raise ValueError("a value changed since it was written")
    trajectory.keep_routed_experts(experts)
