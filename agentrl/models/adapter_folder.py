"""A LoRA adapter's folder on disk, in peft's layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.folder import check_safetensors

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOVED = "set model.path to the base, and model.lora_adapter_path to the adapter"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A saved adapter: its folder, and the content of its `adapter_config.json`."""

    folder: Path
    fields: dict[str, Any]  # Any: peft's fields have many types

    @property
    def base(self) -> str:
        """Folder or hub name of the model that the adapter was trained on.

        Raises:
            ConfigError: the adapter's configuration does not name the base model.
        """
        if base := self.fields.get("base_model_name_or_path"):
            return str(base)
        raise ConfigError.keyless(f"'{self.folder}' does not name its base: {MOVED}")

    def weights_file(self) -> Path:
        """Return the path of the adapter's weights.

        Raises:
            ConfigError: the weights are missing or truncated.
        """
        file = self.folder / ADAPTER_WEIGHTS
        if not file.is_file():
            raise ConfigError.keyless(f"cannot load '{self.folder}': there is no {ADAPTER_WEIGHTS}")
        check_safetensors(file, "adapter")
        return file


def find_adapter(path: str | Path) -> Adapter | None:
    """Return the adapter saved in the folder; None if there is none.

    Raises:
        ConfigError: the adapter's configuration cannot be read, or the adapter is not a LoRA adapter.
    """
    file = Path(path) / ADAPTER_CONFIG
    if not file.is_file():
        return None
    try:
        fields = json.loads(file.read_text())
        method = fields["peft_type"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError.keyless(f"'{file}' is not the configuration of an adapter") from None
    if method != "LORA":
        raise ConfigError.keyless(f"'{path}' is an adapter of type {method}: only LORA is supported")
    return Adapter(Path(path), fields)
