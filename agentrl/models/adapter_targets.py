"""Which modules of a model get a LoRA adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from transformers.pytorch_utils import Conv1D

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError, Kind, suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALL_LINEAR = "all-linear"
LINEAR = nn.Linear, Conv1D


def adapter_targets(model: PreTrainedModel, config: ModelConfig) -> list[str]:
    """Return the full names of the modules that get an adapter, in the model's order.

    Raises:
        ConfigError: a name matches no module, all modules are excluded, or a module to adapt is not linear, or is an
            embedding or the output layer.
    """
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    modules = {name: module for name, module in model.named_modules() if name}
    chosen = _named(modules, config.exclude_modules, "exclude_modules")
    if config.target_modules == (ALL_LINEAR,):
        wanted = {name for name, m in modules.items() if isinstance(m, LINEAR) and id(m) not in ends}
    else:
        wanted = _named(modules, config.target_modules, "target_modules")
    targets = [name for name in modules if name in wanted - chosen]
    for name in targets:
        if not isinstance(modules[name], LINEAR) or id(modules[name]) in ends:
            kind = type(modules[name]).__name__
            raise ConfigError.at(
                "model.target_modules",
                Kind.WRONG_VALUE,
                f"`model.target_modules`: '{name}' ({kind}) is not a linear module of the body",
            )
    if not targets:
        raise ConfigError.at(
            "model.exclude_modules", Kind.WRONG_VALUE, "`model.exclude_modules` excludes all of `model.target_modules`"
        )
    return targets


def _named(modules: dict[str, nn.Module], ends: tuple[str, ...], option: str) -> set[str]:
    """Return the names of the modules whose name equals one of `ends`, or ends with a dot and one of `ends`."""
    found: set[str] = set()
    for end in ends:
        matches = {name for name in modules if name == end or name.endswith(f".{end}")}
        if not matches:
            linear = {name.rpartition(".")[2] for name, m in modules.items() if isinstance(m, LINEAR)}
            raise ConfigError.at(
                f"model.{option}",
                Kind.NOT_FOUND,
                f"`model.{option}`: the model has no module '{end}': {suggestion(end, linear)}",
            )
        found |= matches
    return found
