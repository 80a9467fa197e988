"""Models and datasets on the Hugging Face hub: a fast check whether one exists, and the download of a model.

The check sends one request. Without the check, the hub's libraries would request every file, with retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import httpx
from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from agentrl.errors import ConfigError, DataError, Kind

TIMEOUT_S = 5.0
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""Patterns of the files of a model: configuration, weights, and tokenizer."""
_CODE_FILES = "*.py"
"""Pattern of a model's Python files, which are used only with `model.trust_remote_code`."""
_LOGGER = logging.getLogger(__name__)


@cache
def check_hub(name: str, key: str) -> None:
    """Refuse a model that is not on the hub.

    With HF_HUB_OFFLINE, or if the hub cannot be reached, the model must be in the hub's local cache.

    Args:
        key: the configuration key that contains the name.

    Raises:
        ConfigError: the model is not on the hub; or the hub is not available, and the model is not in the cache.
    """
    if problem := _problem("model", name, lambda: _is_cached(name)):
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: there is no folder '{name}', and {problem}")


def hub_folder(name: str, key: str, *, downloaded: bool = False) -> Path:
    """Return the folder of a model in the hub's cache, with configuration, weights in safetensors files, and tokenizer.

    Args:
        key: the configuration key that contains the name.
        downloaded: whether the files are already in the cache; if so, the hub is not asked.

    Raises:
        ConfigError: the hub has no such model, cannot be reached, or has the model without safetensors files.
    """
    if not downloaded:
        check_hub(name, key)
    try:
        wanted = [*MODEL_FILES, _CODE_FILES]
        folder = Path(snapshot_download(name, allow_patterns=wanted, local_files_only=downloaded))
    except (httpx.HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError.at(key, Kind.NOT_FOUND, f"{key}: cannot download '{name}' from the hub: {reason}") from error
    if not any(folder.glob("*.safetensors")):
        raise _no_weights(name, key, asked=not downloaded)
    return folder


def _no_weights(name: str, key: str, *, asked: bool) -> ConfigError:
    """Return the error of a model without safetensors files. `asked`: whether the hub was asked for the files."""
    if asked and _is_on_hub(name):
        text = f"{key}: '{name}' has no safetensors files on the hub: convert its weights, and name their folder"
        return ConfigError.at(key, Kind.NOT_SUPPORTED, text)
    way_out = f"fetch them with `hf download {name}`, or name a folder with weights"
    return ConfigError.at(
        key, Kind.NOT_FOUND, f"{key}: the hub's cache here has no safetensors files of '{name}': {way_out}"
    )


def _is_on_hub(name: str) -> bool:
    try:
        _ask("model", name)
    except (httpx.HTTPError, HfHubHTTPError, OSError):
        return False
    return True


@cache
def check_hub_dataset(name: str) -> None:
    """Refuse a dataset that is not on the hub.

    With HF_HUB_OFFLINE, or if the hub cannot be reached, the dataset must be in a local cache: in that of the library
    `datasets` or in that of the hub.

    Raises:
        DataError: the dataset is not on the hub; or the hub is not available, and the dataset is in no cache.
    """
    if problem := _problem("dataset", name, lambda: _is_cached_dataset(name)):
        raise DataError(f"{name}: there is no file of that name, and {problem}")


def _ask(kind: Literal["model", "dataset"], name: str) -> None:
    api = HfApi()
    (api.model_info if kind == "model" else api.dataset_info)(name, timeout=TIMEOUT_S)


def _problem(kind: Literal["model", "dataset"], name: str, is_cached: Callable[[], bool]) -> str | None:
    """Return why the model or dataset is not available, in one line; None if it is available."""
    if constants.is_offline_mode():
        missing = f"no {kind} of that name in the hub's cache here, while HF_HUB_OFFLINE is set"
        return None if is_cached() else missing
    try:
        _ask(kind, name)
    except (RepositoryNotFoundError, HFValidationError):
        return f"no {kind} of that name on the hub (a private one needs HF_TOKEN)"
    except (httpx.HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if not is_cached():
            local = "folder" if kind == "model" else "file"
            way_out = f"give a {local}, or fetch the {kind} into the hub's cache and set HF_HUB_OFFLINE=1"
            return f"the hub cannot be reached ({reason}): {way_out}"
        _LOGGER.warning("the hub cannot be reached (%s): set HF_HUB_OFFLINE=1 to avoid this wait", reason)
    return None


def _is_cached(name: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _is_cached_dataset(name: str) -> bool:
    """Whether the dataset is cached, as tables of the `datasets` library or as files of the hub."""
    from datasets import config  # an optional library, and slow to import
    from datasets.naming import camelcase_to_snakecase

    owner, _, own_name = name.partition("/")
    tables = Path(config.HF_DATASETS_CACHE, f"{owner}___{camelcase_to_snakecase(own_name)}")
    files = Path(constants.HF_HUB_CACHE, f"datasets--{owner}--{own_name}", "snapshots")
    return tables.is_dir() or files.is_dir()
