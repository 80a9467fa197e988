"""The parts of parameters as megatron-bridge maps them.

megatron-bridge converts complete weights only. We let it convert weights filled with their own row and column indices.
The result shows which box of which weight each parameter holds. So the weights of models that use megatron-bridge are
also read and written part by part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor, nn

from agentrl.backends.fsdp.checkpoint import failing_together
from agentrl.backends.megatron.bridge import KEY
from agentrl.backends.megatron.weights.mapping import SCALAR_HEAD, Mapped, Part, Placement, Rows, held, mapped
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes
from agentrl.errors import ConfigError, Kind

_EMBEDDING, _HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
_PADDED = (_EMBEDDING, _HEAD)
_BASE = 256
"""Indices are converted digit by digit in this base, because bfloat16 cannot represent all larger integers."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A parameter, and the Hugging Face weights from which megatron-bridge builds it.

    Attributes:
        names: names of these weights in the checkpoint, in the order of `roles`.
        roles: the mapping's own names for these weights, such as q, k and v; None if the mapping uses one weight.
    """

    name: str
    complete_name: str
    value: Tensor
    module: nn.Module
    mapping: Any  # Any: megatron-bridge is untyped
    roles: tuple[str, ...] | None
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_copy: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive rows of a parameter that are also consecutive rows of one weight.

    If `columns` is set, the parameter contains only these columns of the rows.
    """

    weight: int
    start: int
    stop: int
    first_row: int
    columns: tuple[int, int] | None

    def part(self, task: _Task, *, is_first: bool) -> Part:
        rows = (self.first_row, self.stop - self.start)
        box = (rows,) if self.columns is None else (rows, self.columns)
        name, shape, view = task.names[self.weight], task.shapes[self.weight], Rows(self.start, self.stop)
        return Part(name, shape, box, view, is_first)


def bridged(
    chunks: Sequence[LanguageModule], registry: Any, saved: SavedBoxes, group: dist.ProcessGroup
) -> list[Mapped]:
    """Return the parameters of all chunks of this process. All processes call this together.

    A head that outputs one number is mapped without megatron-bridge, which does not know such heads.

    Args:
        registry: the mappings of the model, of the class `MegatronMappingRegistry`.
        saved: the weights of the model.

    Raises:
        ConfigError: on all processes, if the bridge has no mapping for a parameter, if a weight is missing, or if a
            parameter does not consist of rows of weights.
    """
    with failing_together(group):
        tasks = [task for chunk in chunks for task in _tasks(chunk, registry, saved)]
    known: dict[object, list[_Run] | None] = {}
    runs = [_known_runs(task, known) for task in tasks]  # uses collective operations, so all processes call it
    with failing_together(group):
        found = [_mapped(task, each) for task, each in zip(tasks, runs, strict=True)]
    return [*found, *(head for chunk in chunks for head in mapped(chunk, 0, SCALAR_HEAD))]


def _tasks(chunk: LanguageModule, registry: Any, saved: SavedBoxes) -> Iterator[_Task]:
    for name, complete_name, value in held(chunk):
        if complete_name.startswith(SCALAR_HEAD):
            continue
        is_copy = complete_name == _HEAD and chunk.share_embeddings_and_output_weights
        mapping = registry.megatron_to_hf_lookup(_EMBEDDING if is_copy else complete_name)
        if mapping is None:
            text = f"`{KEY}`: megatron-bridge has no mapping for the parameter '{complete_name}': remove this key"
            raise ConfigError.at(KEY, Kind.NOT_SUPPORTED, text)
        found = mapping.hf_param
        roles, names = (tuple(found), tuple(found.values())) if isinstance(found, dict) else (None, (found,))
        shapes = tuple(_shape(saved, each) for each in names)
        module = _module(chunk, name)
        yield _Task(name, complete_name, value, module, mapping, roles, names, shapes, is_copy)


def _shape(saved: SavedBoxes, name: str) -> tuple[int, ...]:
    if (shape := saved.shape(name)) is None:
        raise ConfigError.keyless(f"the weight '{name}' is missing")
    return shape


def _module(chunk: LanguageModule, name: str) -> nn.Module:
    found: nn.Module = chunk.get_submodule(name.rpartition(".")[0])
    if not hasattr(found, "config"):
        found.config = chunk.config  # read by mappings
    return found


def _known_runs(task: _Task, known: dict[object, list[_Run] | None]) -> list[_Run] | None:
    """Return the result of `_runs`, which is computed only once for parameters that differ only in layer or expert."""
    key = re.sub(r"\d+", "*", task.complete_name), task.shapes, task.value.shape
    if key not in known:
        known[key] = _runs(task)
    return known[key]


def _mapped(task: _Task, runs: Sequence[_Run] | None) -> Mapped:
    if runs is None:
        names = " and ".join(f"'{name}'" for name in task.names)
        text = f"`{KEY}`: the parameter '{task.complete_name}' does not consist of rows of {names}: remove this key"
        raise ConfigError.at(KEY, Kind.NOT_SUPPORTED, text)
    is_first = Placement(task.complete_name, task.value).is_first and not task.is_copy
    return Mapped(task.name, task.value, [run.part(task, is_first=is_first) for run in runs])


def _runs(task: _Task) -> list[_Run] | None:
    """Return the rows of a parameter; None if the parameter does not consist of rows of weights."""
    if task.value.ndim > 2 or any(len(shape) != task.value.ndim for shape in task.shapes):
        return None
    # `_line` uses collective operations, so all processes must make the same calls
    owners = _line(task, 0, lambda index, length: torch.full((length,), index + 1))
    rows = _line(task, 0, lambda _, length: torch.arange(length))
    own = [position for position, owner in enumerate(owners) if owner]  # all other rows pad the vocabulary
    columns = _line(task, 1, lambda _, length: torch.arange(length), own) if task.value.ndim == 2 else [0]
    if not owners or (len(own) < len(owners) and task.complete_name not in _PADDED):
        return None
    if not own:
        return []
    if not (rows and columns) or columns != [*range(columns[0], columns[0] + len(columns))]:
        return None
    span = (columns[0], len(columns)) if task.value.ndim == 2 else None
    return _joined_rows([(position, owners[position] - 1, rows[position]) for position in own], span)


def _joined_rows(rows: Sequence[tuple[int, int, int]], columns: tuple[int, int] | None) -> list[_Run]:
    """Join rows that are consecutive in the parameter and in one weight.

    Args:
        rows: (row of the parameter, index of the weight, row of the weight).
    """
    found: list[_Run] = []
    for position, weight, row in rows:
        last = found[-1] if found else None
        if last and weight == last.weight and row - last.first_row == position - last.start == last.stop - last.start:
            found[-1] = replace(last, stop=position + 1)
        else:
            found.append(_Run(weight, position, position + 1, row, columns))
    return found


def _line(
    task: _Task, dim: int, numbers: Callable[[int, int], Tensor], chosen: Sequence[int] | None = None
) -> list[int]:
    """Fill the weights with numbers, and return the number in each row (dim 0) or column (dim 1) of the parameter.

    The result is empty if a row (or column) of the parameter contains different numbers.

    Args:
        numbers: (index of a weight, its number of rows or columns) -> a number for each of its rows or columns.
        chosen: the rows that are read; None: all rows.
    """
    given = [numbers(index, shape[dim]) for index, shape in enumerate(task.shapes)]
    found, scale = torch.zeros(task.value.shape[dim], dtype=torch.int64), 1
    is_uniform = True
    while scale <= max(int(each.max()) for each in given):
        pairs = zip(given, task.shapes, strict=True)
        converted = _converted(task, [_spread(each // scale % _BASE, shape, dim) for each, shape in pairs])
        converted = converted if chosen is None else converted[chosen]
        flat = converted.movedim(dim, 0).flatten(1) if converted.ndim > 1 else converted[:, None]
        if not flat.numel() or not (flat == flat[:, :1]).all():
            is_uniform = False
        else:
            found += flat[:, 0].long() * scale
        scale *= _BASE
    return found.tolist() if is_uniform else []


def _spread(line: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """Return a weight of this shape whose rows or columns hold the numbers of `line`."""
    return line.float().view([-1 if each == dim else 1 for each in range(len(shape))]).expand(shape).contiguous()


def _converted(task: _Task, weights: Sequence[Tensor]) -> Tensor:
    given = weights[0] if task.roles is None else dict(zip(task.roles, weights, strict=True))
    found: Tensor = task.mapping.hf_to_megatron(given, task.module)
    return found.float().cpu()
