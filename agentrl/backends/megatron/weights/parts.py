"""The weights of a model's chunks, as parts of Hugging Face weights."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.backends.fsdp.checkpoint import failing_together
from agentrl.backends.megatron.architecture.prediction import PREFIX
from agentrl.backends.megatron.weights.mapping import Box, Mapped, Part, in_memory, memory_name, write_to
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes
from agentrl.backends.shared_memory import WeightFacts
from agentrl.errors import ConfigError

_LAYER = re.compile(r"\.layers\.(\d+)\.")
BUFFER = "e_score_correction_bias"
"""End of the names of weights that are buffers, not parameters."""
Item = TypeVar("Item")
Named = tuple[str, WeightFacts, Box]


class Weights:
    """Weights under their names in a checkpoint, and under their names in memory (`in_memory`).

    All processes create this object together.

    Args:
        parameters: the parameters of this process and their parts, without adapters.
        adapters: the parameters of the adapters and their parts; a checkpoint of the base model does not have them.
        renamed: returns a part under its name in memory.

    Attributes:
        parameters: all parameters of this process and their parts.
        num_experts: number of experts of each layer; 0 without experts.
        frozen: names in memory of the frozen weights.
        group: all processes.
        readable: returns the values of a parameter from where they are now, on the device or the CPU.
    """

    def __init__(
        self,
        parameters: Sequence[Mapped],
        num_experts: int,
        group: dist.ProcessGroup,
        adapters: Sequence[Mapped] = (),
        renamed: Callable[[Part], Part] = lambda part: part,
    ) -> None:
        self.parameters = [*parameters, *adapters]
        self._base = parameters
        self.frozen: frozenset[str] = frozenset()
        self.num_experts = num_experts
        self._own: defaultdict[str, list[tuple[Tensor, Part]]] = defaultdict(list)
        for value, part in _parts(self.parameters):
            stacked = renamed(in_memory(part, num_experts))
            for each in [part] if stacked.name == part.name else [part, stacked]:
                self._own[each.name].append((value, each))
        self.group = group
        self.readable: Callable[[Tensor], Tensor] = Tensor.detach
        self._facts, self._boxes = _joined(self._named(), group)
        shared = [each for each in self.parameters if not _is_ahead(each)]
        stacked_names = {renamed(in_memory(part, num_experts)).name for _, part in _parts(shared)}
        self._in_memory = _all_of(stacked_names, group)
        self._saved = _all_of({part.name for _, part in _parts(parameters)}, group)
        ahead = _all_of({part.name for each in parameters if _is_ahead(each) for part in each.parts}, group)
        self._in_checkpoint = [name for name in self._saved if name not in {*ahead}]

    def _named(self) -> list[Named]:
        """Return (name, facts, box) of each part that this process reports to the other processes."""
        return [
            (name, WeightFacts(torch.Size(part.shape), value.dtype), part.box)
            for name, members in self._own.items()
            for value, part in members
            if part.is_first
        ]

    @property
    def memory_names(self) -> list[str]:
        """Names of all weights of the complete model in memory, in order of layers; see `saved_names`."""
        return self._in_memory

    @property
    def checkpoint_names(self) -> list[str]:
        """Names of all weights of the complete model in a checkpoint, in order of layers; see `saved_names`."""
        return self._in_checkpoint

    @property
    def saved_names(self) -> list[str]:
        """`checkpoint_names`, then the names of trained layers for multi-token prediction, which engines do not get."""
        return self._saved

    def trained(self, names: Sequence[str]) -> list[str]:
        """Return the trained weights among `names`; if no weight is frozen, return all `names`, including buffers."""
        if not self.frozen:
            return [*names]
        return [name for name in names if memory_name(name) not in self.frozen and not name.endswith(BUFFER)]

    def freeze_all_but(self, names: Collection[str]) -> None:
        """Mark all weights except `names` as frozen. `frozen` gets the base model's names of the frozen weights."""
        others = {*self.memory_names} - {*names}
        self.frozen = frozenset(name.replace(".base_layer.", ".") for name in others)

    def facts(self) -> Mapping[str, WeightFacts]:
        """See `HeldWeights.facts`."""
        return self._facts

    def places(self, name: str, complete: Tensor) -> dict[int, list[Tensor]]:
        """See `HeldWeights.places`."""
        return {rank: [complete[_slices(box)] for box in boxes] for rank, boxes in self._boxes.get(name, {}).items()}

    def own_parts(self, name: str) -> list[Tensor]:
        """See `HeldWeights.own_parts`."""
        return [part.view(self.readable(value)) for value, part in self._own.get(name, ()) if part.is_first]

    def place(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the parts of this process with complete weights, under their names in a checkpoint or in memory."""
        for name, complete in weights.items():
            for value, part in self._own.get(name, ()):
                write_to(part, value, complete[_slices(part.box)])

    def read(self, saved: SavedBoxes, new: Collection[str] = ()) -> None:
        """Replace the weights of the model (not of its adapters) on all processes by the weights of a checkpoint.

        Args:
            new: weights that the checkpoint lacks; they become 0.

        Raises:
            ConfigError: on all processes, if a weight is missing, is not finite, has another shape, or has a data type
                of less than 16 bits.
        """
        with failing_together(self.group):
            for value, part in _parts(self._base):
                write_to(part, value, torch.zeros_like(value) if part.name in new else _checked(saved, part))

    def copy(self, other: Weights) -> None:
        """Copy the weights of another model with the same layout, except layers for multi-token prediction."""
        shared = [[each for each in model.parameters if not _is_ahead(each)] for model in (self, other)]
        with torch.no_grad():
            for own, theirs in zip(*shared, strict=True):
                own.value.copy_(theirs.value)


def _is_ahead(parameter: Mapped) -> bool:
    return parameter.name.startswith(PREFIX)


def _parts(parameters: Sequence[Mapped]) -> Iterator[tuple[Tensor, Part]]:
    for each in parameters:
        yield from ((each.value, part) for part in each.parts)


def _checked(saved: SavedBoxes, part: Part) -> Tensor:
    if (shape := saved.shape(part.name)) not in (None, part.shape):
        raise ConfigError.keyless(f"the weight '{part.name}' has the shape {shape}, expected {part.shape}")
    found = saved.read(part.name, part.box)
    if found.dtype.itemsize < 2:
        kind = str(found.dtype).removeprefix("torch.")
        raise ConfigError.keyless(f"the weight '{part.name}' has the type {kind}: convert the weights to bfloat16")
    if not found.isfinite().all():
        raise ConfigError.keyless(f"the weights are not finite: '{part.name}' holds NaN or infinity")
    return found


def _joined(
    own: list[Named], group: dist.ProcessGroup
) -> tuple[dict[str, WeightFacts], dict[str, dict[int, list[Box]]]]:
    """Return shape and data type of all weights of the complete model, and the boxes that each process has."""
    facts: dict[str, WeightFacts] = {}
    boxes: dict[str, dict[int, list[Box]]] = {}
    for rank, named in enumerate(_gathered(own, group)):
        for name, fact, box in named:
            facts[name] = fact
            boxes.setdefault(name, {}).setdefault(rank, []).append(box)
    return facts, boxes


def _all_of(own: set[str], group: dist.ProcessGroup) -> list[str]:
    return sorted(set().union(*_gathered(own, group)), key=_order)


def _gathered(own: Item, group: dist.ProcessGroup) -> list[Item]:
    """Return the items of all processes."""
    found: list[Any] = [None] * dist.get_world_size(group)  # Any: as in torch
    dist.all_gather_object(found, own, group)
    return found


def _order(name: str) -> tuple[float, str]:
    if found := _LAYER.search(name):
        return float(found[1]), name
    return (-1.0 if "embed" in name else float("inf")), name


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in box)
