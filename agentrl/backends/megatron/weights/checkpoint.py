"""Checkpoints: a Hugging Face folder, and the optimizer state, of which every process writes its parts.

The parts are named after Hugging Face weights. So a checkpoint loads in any layout, and reading it runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentrl.backends.fsdp.checkpoint import FILE_BYTES, failing_together, read_to_the_end, write_weights
from agentrl.backends.megatron.weights.mapping import Box
from agentrl.backends.megatron.weights.parts import Weights
from agentrl.backends.megatron.weights.saved_boxes import SavedBox, SavedBoxes
from agentrl.backends.megatron.weights.source import Source
from agentrl.backends.shared_memory import receive, send
from agentrl.backends.torch.checkpoint import STATE_FILE, filled, write_errors
from agentrl.errors import ConfigError
from agentrl.models.adapters import write_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PARTS = Path("trainer_state") / "parts"
_BOXES = "boxes"


@dataclass(frozen=True, slots=True)
class SavedState:
    """The state that one process writes to a checkpoint.

    Attributes:
        source: the folder that the model came from.
        weights: names, shapes and places of the weights; their values are not read.
        parts: the parts of each saved weight on this process, by the name of the weight.
        optimizer: parts of the optimizer state, (name, box, values). Each part is copied to CPU memory when it is
            read; all processes read their parts at the same time.
        rest: the rest of the state, which is the same on every process.
        adapted: the model with its adapter, without values, if only an adapter is saved.
    """

    source: Source
    weights: Weights
    parts: Mapping[str, Sequence[Tensor]]
    optimizer: Iterator[tuple[str, Box, Tensor]]
    rest: dict[str, Any]  # Any: as torch.save writes it
    adapted: PreTrainedModel | None

    def copied(self) -> SavedState:
        """Return the same state with copies of all tensors in CPU memory."""
        parts = {name: [part.detach().to("cpu", copy=True) for part in own] for name, own in self.parts.items()}
        return replace(self, parts=parts, optimizer=iter([*self.optimizer]))


def write_checkpoint(folder: Path, state: SavedState, group: dist.ProcessGroup) -> None:
    """Write a checkpoint into `folder`; every process calls this with its parts.

    Raises:
        ConfigError: on all processes, if one of them cannot write its part.
    """
    with failing_together(group), read_to_the_end(_complete_weights(state, group)) as weights:
        if dist.get_rank() == 0:
            _write_files(folder, state, weights)
    with failing_together(group), read_to_the_end(state.optimizer) as optimizer, write_errors(folder):
        write_parts(folder, dist.get_rank(), optimizer)


def _write_files(folder: Path, state: SavedState, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write all files except the optimizer state."""
    with write_errors(folder), filled(folder):
        state.source.write_rest(folder, complete=state.adapted is None)
        if state.adapted is None:
            write_weights(folder, state.source.with_layers_ahead(weights, state.parts))
        else:
            write_adapter(state.adapted, dict(weights), folder)
        torch.save(state.rest, folder / STATE_FILE)


def _complete_weights(state: SavedState, group: dist.ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    """Yield the complete weights, in CPU memory, on rank 0. The other processes send their parts and get nothing."""
    for name in state.parts:
        if dist.get_rank() == 0:
            yield name, _received(state, name, group)
        else:
            for part in state.parts[name]:
                send(part.detach().cpu(), group)


def _received(state: SavedState, name: str, group: dist.ProcessGroup) -> Tensor:
    facts = state.weights.facts()[name]
    complete = torch.empty(facts.shape, dtype=facts.dtype)
    places = state.weights.places(name, complete)
    for place, part in zip(places.get(0, ()), state.parts[name], strict=True):
        place.copy_(part.detach().reshape(place.shape))
    for rank in places.keys() - {0}:
        for place in places[rank]:
            receive(place, rank, group)
    return complete


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
    yield pending  # maybe empty: for example, before the first update there is no state in float32


def read_parts(folder: Path) -> SavedBoxes:
    """Return the parts of the optimizer state that all processes wrote to the checkpoint `folder`.

    Raises:
        ConfigError: the checkpoint has no parts, or a file is corrupt.
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
