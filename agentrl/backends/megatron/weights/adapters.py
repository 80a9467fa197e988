"""LoRA adapters of a model on this process: their layers, and their parts under the names of peft."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor, nn

from agentrl.backends.megatron.architecture.lora import LowRank, LowRankSize
from agentrl.backends.megatron.weights.mapping import Mapped, Part, Placement, Rows
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapters import adapter_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Adapters:
    """The adapters of a model, as peft defines them.

    Attributes:
        skeleton: the model with its adapter, without values; see `adapted_skeleton`.
        modules: names of the modules with an adapter.

    Raises:
        ConfigError: the adapter has weights that are not LoRA weights.
    """

    def __init__(self, skeleton: PreTrainedModel) -> None:
        self.skeleton = skeleton
        self._shapes = {name: tuple(value.shape) for name, value in adapter_parameters(skeleton)}
        for name in self._shapes:
            if not name.endswith((".lora_A.default.weight", ".lora_B.default.weight")):
                text = f"`actor.backend=megatron` does not support the weight '{name}' of an adapter: merge the adapter"
                raise ConfigError.at("model.lora_adapter_path", Kind.NOT_SUPPORTED, text)
        self.modules = {name.rpartition(".lora_")[0] for name in self._shapes}
        self._scales = {name: _scale(skeleton.get_submodule(name)) for name in self.modules}

    @property
    def names(self) -> list[str]:
        """Names of the adapter's weights, in the order of the model."""
        return [*self._shapes]

    def attach(self, chunks: Sequence[LanguageModule], parameters: Sequence[Mapped]) -> list[Mapped]:
        """Add the adapters to the linear modules of all chunks; return the adapters' parameters, which are 0."""
        owners = {id(module.weight): module for chunk in chunks for module in _linear(chunk)}
        found: list[Mapped] = []
        for each in parameters:
            adapted = self._adapted(each)
            if adapted and id(each.value) in owners:
                found += self._attached(owners[id(each.value)], each, adapted)
        return found

    def check_attached(self, names: Collection[str]) -> None:
        """Check that each weight of the adapters is on some process.

        Raises:
            ConfigError: peft adapts a module for which this backend has no adapter, such as the stacked experts of some
                models. The message names the module.
        """
        if missing := [name for name in self._shapes if name not in names]:
            module = missing[0].rpartition(".lora_")[0]
            which = "gate_proj, up_proj and down_proj" if ".experts" in module else "it"
            text = (
                f"`model.target_modules`: `actor.backend=megatron` has no adapter for '{module}':"
                f" name {which} in `model.exclude_modules`"
            )
            raise ConfigError.at("model.target_modules", Kind.NOT_SUPPORTED, text)

    def initial(self, parts: Sequence[Mapped], seed: int) -> Iterator[tuple[str, Tensor]]:
        """Yield initial values of A for the adapters on this process, seeded by `seed` and the name; B stays 0."""
        for name in {part.name for each in parts for part in each.parts if ".lora_A." in part.name}:
            generator = torch.Generator().manual_seed(seed + crc32(name.encode()))
            bound = 1 / math.sqrt(self._shapes[name][1])  # as in peft
            yield name, torch.empty(self._shapes[name]).uniform_(-bound, bound, generator=generator)

    def renamed(self, part: Part) -> Part:
        """Return a part of the base model under the name that it has in a model with an adapter."""
        module, _, kind = part.name.rpartition(".")
        return replace(part, name=f"{module}.base_layer.{kind}") if module in self.modules else part

    def _adapted(self, parameter: Mapped) -> Mapping[str, Sequence[Part]]:
        """Return the parts of a weight, grouped by the adapted Hugging Face module that they belong to."""
        found: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parameter.parts:
            module, _, kind = part.name.rpartition(".")
            if kind == "weight" and module in self.modules:
                found[module].append(part)
        return found

    def _attached(self, base: nn.Module, weight: Mapped, adapted: Mapping[str, Sequence[Part]]) -> Iterator[Mapped]:
        sizes = [
            LowRankSize(
                rank=self._shapes[f"{name}.lora_A.default.weight"][0],
                scale=self._scales[name],
                num_columns=parts[0].box[1][1],
                outputs=torch.cat([_rows(part, weight.value) for part in parts]),
            )
            for name, parts in adapted.items()
        ]
        base.lora = layer = LowRank(base, sizes)
        prefix = f"{weight.name.rpartition('.')[0]}.lora"
        for number, (name, parts) in enumerate(adapted.items()):
            down, up = layer.down[number], layer.up[number]
            yield Mapped(f"{prefix}.down.{number}", down, [self._part_of_down(name, parts[0], down)])
            yield Mapped(f"{prefix}.up.{number}", up, [*self._parts_of_up(name, parts, up)])

    def _part_of_down(self, name: str, part: Part, value: Tensor) -> Part:
        own = f"{name}.lora_A.default.weight"
        box = ((0, len(value)), part.box[1])
        return Part(own, self._shapes[own], box, Rows(0, len(value)), Placement(own, value).is_first)

    def _parts_of_up(self, name: str, parts: Sequence[Part], value: Tensor) -> Iterator[Part]:
        own, start = f"{name}.lora_B.default.weight", 0
        for part in parts:
            rows = part.box[0]
            view = Rows(start, start + rows[1])
            box = (rows, (0, value.shape[1]))
            yield Part(own, self._shapes[own], box, view, Placement(own, value).is_first)
            start += rows[1]


def _scale(layer: Any) -> float:  # Any: a layer of peft, which is optional
    return float(layer.scaling["default"])


def _linear(chunk: LanguageModule) -> Iterator[nn.Module]:
    yield from (module for module in chunk.modules() if isinstance(getattr(module, "weight", None), nn.Parameter))


def _rows(part: Part, weight: Tensor) -> Tensor:
    """Return which rows of the weight a part contains, in the order of the part."""
    numbers = torch.arange(len(weight))[:, None].expand(weight.shape)
    return part.view(numbers).flatten(0, -2)[:, 0]
