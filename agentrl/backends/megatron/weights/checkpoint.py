"""The optimizer state in a checkpoint: every process writes its parts, named after Hugging Face weights.

So a checkpoint loads in any layout, and reading it runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentrl.backends.fsdp.checkpoint import FILE_BYTES
from agentrl.backends.megatron.weights.mapping import Box
from agentrl.backends.megatron.weights.saved_boxes import SavedBox, SavedBoxes
from agentrl.errors import ConfigError

PARTS = Path("trainer_state") / "parts"
_BOXES = "boxes"


def write_parts(folder: Path, rank: int, parts: Iterable[tuple[str, Box, Tensor]]) -> None:
    """Write the parts of one process, (name, box, values), in files of about `FILE_BYTES`."""
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    for number, members in enumerate(_files(parts)):
        boxes = {str(key): (name, box) for key, (name, box, _) in enumerate(members)}
        tensors = {str(key): values.contiguous() for key, (_, _, values) in enumerate(members)}
        file = folder / PARTS / f"rank-{rank:05d}-{number:05d}.safetensors"
        save_file(tensors, file, metadata={_BOXES: json.dumps(boxes)})


def _files(parts: Iterable[tuple[str, Box, Tensor]]) -> Iterator[list[tuple[str, Box, Tensor]]]:
    pending: list[tuple[str, Box, Tensor]] = []
    for name, box, values in parts:
        if pending and sum(each.nbytes for _, _, each in pending) + values.nbytes > FILE_BYTES:
            yield pending
            pending = []
        pending.append((name, box, values))
    if pending:
        yield pending


def read_parts(folder: Path) -> SavedBoxes:
    """Return the parts of all processes of the checkpoint `folder`.

    Raises:
        ConfigError: there are none, or a file is corrupt.
    """
    files = sorted((folder / PARTS).glob("*.safetensors"))
    if not files:
        raise ConfigError.keyless(f"{PARTS} is missing: its optimizer state was written by another backend")
    boxes: dict[str, list[SavedBox]] = {}
    for file in files:
        for key, name, box in _boxes_in(file):
            boxes.setdefault(name, []).append(SavedBox(file, key, box))
    return SavedBoxes(boxes)


def _boxes_in(file: Path) -> Iterator[tuple[str, str, Box]]:
    try:
        with safe_open(file, "pt") as opened:
            listed = json.loads(opened.metadata()[_BOXES])
        for key, (name, box) in listed.items():
            yield key, str(name), tuple((int(start), int(length)) for start, length in box)
    except Exception as error:  # truncated or foreign files raise many kinds of errors
        reason = " ".join(str(error).split())[:150]
        raise ConfigError.keyless(f"{file.name} in {PARTS} is corrupt ({reason})") from error
