"""Whether the hub has a model, asked once and quickly: transformers asks for every file, and each time for long."""

from __future__ import annotations

import logging
import re
from functools import cache
from pathlib import Path

import httpx
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from agentrl.errors import ConfigError

TIMEOUT_S = 5.0
_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_LOGGER = logging.getLogger(__name__)


def is_folder(path: str) -> bool:
    """Whether `path` means a folder, that may be missing, and not a name on the hub."""
    return Path(path).is_dir() or not _NAME.fullmatch(path)


@cache
def check_hub(name: str, key: str) -> None:
    """Refuse a model that is neither on the hub nor in its local cache.

    Args:
        key: of the configuration, which the name came from.

    Raises:
        ConfigError: there is no such model, or the hub cannot be reached.
    """
    nowhere = f"{key}: there is no folder '{name}', and"
    if constants.is_offline_mode():
        if not _is_cached(name):
            raise ConfigError(f"{nowhere} no model of that name in the hub's cache here, while HF_HUB_OFFLINE is set")
        return
    try:
        HfApi().model_info(name, timeout=TIMEOUT_S)
    except (RepositoryNotFoundError, HFValidationError):
        raise ConfigError(f"{nowhere} no model of that name on the hub (a private one needs HF_TOKEN)") from None
    except (httpx.HTTPError, HfHubHTTPError, OSError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        if not _is_cached(name):
            way_out = "give a folder, or fetch the model into the hub's cache and set HF_HUB_OFFLINE=1"
            raise ConfigError(f"{nowhere} the hub cannot be reached ({reason}): {way_out}") from error
        _LOGGER.warning("the hub cannot be reached (%s): HF_HUB_OFFLINE=1 spares waiting for it", reason)


def _is_cached(name: str) -> bool:
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False
