"""LoRA adapters (arXiv:2106.09685) with peft: add, write, read, switch off. The base model is never changed."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from agentrl.config.model import ModelConfig
from agentrl.errors import ConfigError, Kind, install_command
from agentrl.models.adapter_folder import ADAPTER_WEIGHTS, Adapter
from agentrl.models.adapter_targets import adapter_targets

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PREFIX = "base_model.model."  # the prefix of all names in peft's files
UNSUPPORTED_FIELDS = {
    "bias": "none",
    "modules_to_save": None,
    "trainable_token_indices": None,
    "layer_replication": None,
}
"""Unsupported fields of an adapter's configuration -> the value that turns the field off.

An adapter may also have None or an empty list in these fields; other values are refused.
"""


def check_peft() -> None:
    """Raise a ConfigError with installation instructions if peft is missing."""
    if importlib.util.find_spec("peft") is None:
        raise ConfigError.at("model.lora_rank", Kind.NOT_FOUND, f"LoRA needs peft: {install_command('lora')}")


def has_adapter(model: nn.Module) -> bool:
    """Whether the model has an adapter."""
    return hasattr(model, "peft_config")


def add_new_adapter(model: PreTrainedModel, config: ModelConfig, base: str) -> None:
    """Add a new adapter to `model`. Only the adapter requires gradients.

    Matrix A is random and matrix B is 0, so the model's outputs do not change yet.

    Args:
        base: folder or hub name of `model`; stored in the adapter's configuration.

    Raises:
        ConfigError: see `adapter_targets`.
    """
    from peft import LoraConfig

    targets = adapter_targets(model, config)
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=int(config.lora_alpha) if config.lora_alpha % 1 == 0 else config.lora_alpha,  # loaders expect an int
        target_modules=targets,
        fan_in_fan_out=isinstance(model.get_submodule(targets[0]), Conv1D),
        task_type="CAUSAL_LM",
    )
    _inject(model, lora, base)


def add_saved_adapter(model: PreTrainedModel, adapter: Adapter, config: ModelConfig, base: str) -> None:
    """Add a saved adapter to `model` with its values; see `fit_saved_adapter`."""
    fit_saved_adapter(model, adapter, config, base)
    read_adapter(model, adapter)


def fit_saved_adapter(model: PreTrainedModel, adapter: Adapter, config: ModelConfig, base: str) -> None:
    """Add an adapter with the options, not the values, of a saved adapter. Only the added adapter requires gradients.

    For `base`, see `add_new_adapter`.

    Raises:
        ConfigError: the adapter does not fit the model, uses unsupported fields (`UNSUPPORTED_FIELDS`), or its rank or
            alpha differs from `config`.
    """
    from peft import LoraConfig

    for field, neutral in UNSUPPORTED_FIELDS.items():
        if adapter.fields.get(field) not in (neutral, None, []):
            raise ConfigError.keyless(
                f"'{adapter.folder}' has '{field}', which is not supported: merge the adapter (agentrl export)"
            )
    _check_options(adapter, config)
    try:
        _inject(model, LoraConfig.from_pretrained(str(adapter.folder)), base)
    except (ValueError, TypeError) as error:
        raise ConfigError.keyless(f"'{adapter.folder}' does not fit its base: {str(error).splitlines()[0]}") from error


def read_adapter(model: PreTrainedModel, adapter: Adapter) -> None:
    """Load a saved adapter's values into the model's adapter.

    Raises:
        ConfigError: the saved adapter is corrupt, or its modules, ranks or scales differ from the model's adapter.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    file = adapter.weights_file()
    _check_scale(model, adapter)
    try:
        found = set_peft_model_state_dict(model, load_file(file))
    except (RuntimeError, KeyError) as error:
        raise ConfigError.keyless(f"'{file}' does not fit the model: {' '.join(str(error).split())[:200]}") from error
    lacking = {name for name, _ in adapter_parameters(model)} & set(found.missing_keys)
    for name in sorted([*found.unexpected_keys, *lacking])[:1]:
        raise ConfigError.keyless(f"'{file}' does not fit the model's adapter: '{name}' is in only one of them")


def _check_scale(model: PreTrainedModel, adapter: Adapter) -> None:
    own = model.peft_config["default"]
    for field, value in (("r", own.r), ("lora_alpha", own.lora_alpha), ("use_rslora", own.use_rslora)):
        if adapter.fields.get(field, value) != value:
            raise ConfigError.keyless(
                f"'{adapter.folder}' has {field}={adapter.fields[field]}, but this run has {value}"
            )


def adapter_values(model: PreTrainedModel, adapter: Adapter) -> dict[str, Tensor]:
    """Return the values of a saved adapter under the names of the model's parameters.

    Raises:
        ConfigError: the saved adapter is corrupt, or its modules, ranks or scales differ from the model's adapter.
    """
    from safetensors.torch import load_file

    _check_scale(model, adapter)
    own, found = dict(adapter_parameters(model)), {}
    for name, value in load_file(adapter.weights_file()).items():
        found[name.removeprefix(PREFIX).removesuffix("weight") + "default.weight"] = value
    for name in sorted(own.keys() | found.keys()):
        if name not in own or name not in found or own[name].shape != found[name].shape:
            raise ConfigError.keyless(f"'{adapter.folder}' does not fit the model's adapter: '{name}' differs")
    return found


def write_adapter(model: PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """Write the adapter of `model`, with the values in `weights`, to `folder` in peft's format."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    values = get_peft_model_state_dict(model, weights, save_embedding_layers=False)
    contiguous = {f"{PREFIX}{name}": value.contiguous() for name, value in values.items()}
    save_file(contiguous, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def adapter_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the adapter's parameters with their names; nothing for a model without an adapter."""
    for name, value in model.named_parameters():
        if ".lora_" in name and has_adapter(model):
            yield name, value


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Use only the base model inside the block; `requires_grad` of all parameters is restored afterwards."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    trained = [(value, value.requires_grad) for value in model.parameters()]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)  # this call makes all adapter parameters trainable
        for value, was in trained:
            value.requires_grad_(was)


@contextmanager
def adapter_randomized(model: nn.Module) -> Iterator[None]:
    """Replace an adapter's zero matrices by random ones inside the block, so that checks see a new adapter's effect."""
    generator = torch.Generator().manual_seed(0)
    zeros = [value for _, value in adapter_parameters(model) if not value.any()]
    for value in zeros:
        _fill(value, torch.randn(value.shape, generator=generator) * 0.02)
    try:
        yield
    finally:
        for value in zeros:
            _fill(value, torch.zeros(()))


@torch.no_grad()
def _fill(value: nn.Parameter, source: Tensor) -> None:
    value.copy_(source)


def _inject(model: PreTrainedModel, lora: Any, base: str) -> None:  # Any: a LoraConfig; peft is optional
    from peft import inject_adapter_in_model

    lora.base_model_name_or_path = str(Path(base).resolve()) if Path(base).is_dir() else base
    lora.inference_mode = False  # peft saves True, which would freeze the adapter
    with warnings.catch_warnings():  # peft warns about the ranks that it adds for stacked experts
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        inject_adapter_in_model(lora, model)
    for _, value in adapter_parameters(model):
        value.data = value.data.to(torch.promote_types(value.dtype, torch.float32))  # bfloat16 loses small updates
    _compute_in_input_dtype(model)
    model.eval()


def _compute_in_input_dtype(model: nn.Module) -> None:
    """Make adapter layers convert their float32 weights to their input's dtype; peft would convert inputs and outputs.

    Layers of variants such as DoRA are not changed, because these variants compute norms of their weights.
    """
    from peft.tuners.lora import Linear

    for layer in [layer for layer in model.modules() if isinstance(layer, Linear) and not layer.lora_variant]:
        layer.cast_input_dtype_enabled = False
        for matrices in (layer.lora_A, layer.lora_B):
            for name, matrix in matrices.items():
                matrices[name] = _InputDtypeLinear(matrix)


class _InputDtypeLinear(nn.Linear):
    def __init__(self, source: nn.Linear) -> None:
        super().__init__(source.in_features, source.out_features, bias=source.bias is not None, device="meta")
        self.weight, self.bias = source.weight, source.bias

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return nn.functional.linear(input, self.weight.to(input.dtype), bias)


def _check_options(adapter: Adapter, config: ModelConfig) -> None:
    """Reject a configured rank or alpha that differs from the saved adapter's, because such a value has no effect."""
    fields = type(config).model_fields
    for option, field in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        value = getattr(config, option)
        if value not in (adapter.fields.get(field), fields[option].get_default()):
            raise ConfigError.at(
                f"model.{option}",
                Kind.CONFLICT,
                f"`model.{option}={value:g}` contradicts the adapter '{adapter.folder}', which has"
                f" {adapter.fields.get(field)}: remove the key",
            )
