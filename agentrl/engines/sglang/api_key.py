"""API keys of SGLang servers.

A server that the run starts gets a new key. The key of a server that already runs is in an environment variable.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import JsonValue

from agentrl.config.rollout import SglangConfig
from agentrl.errors import ConfigError, Kind
from agentrl.security.redaction import remember_secret


def keyed(options: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], str | None]:
    """Return (options without the key, key).

    Without an `api_key` option, the key is random. With the value null or "", the server has no key: the key is None.
    """
    rest = dict(options)
    # hex, because SGLang would read a key that begins with "-" as an option
    value = rest.pop("api_key", secrets.token_hex(32))
    if value:
        remember_secret(str(value))
    return rest, str(value) if value else None


def write_key_file(options: Mapping[str, JsonValue], api_key: str | None) -> Path:
    """Write a file for SGLang's option `--config`: the options of the user's own config file, and the key.

    The key is not passed as a command argument, because other users of the machine could read it.

    Raises:
        ConfigError: the user's config file cannot be read.
    """
    descriptor, name = tempfile.mkstemp(prefix="agentrl-sglang-", suffix=".yaml")  # readable only by this user
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        key = {"api-key": api_key} if api_key else {}
        yaml.safe_dump({**_own(options.get("config")), **key}, file)
    return Path(name)


def key_of(sglang: SglangConfig) -> str | None:
    """Return the API key of servers that already run, from the environment; None if the servers need no key.

    Raises:
        ConfigError: the environment variable with the key is not set.
    """
    if sglang.api_key_env is None:
        return None
    if not (key := os.environ.get(sglang.api_key_env)):
        raise ConfigError.at(
            "rollout.sglang.api_key_env",
            Kind.NOT_FOUND,
            f"rollout.sglang.api_key_env: the environment has no '{sglang.api_key_env}'",
        )
    remember_secret(key)
    return key


def _own(path: JsonValue) -> dict[str, JsonValue]:
    if path is None:
        return {}
    try:
        value = yaml.safe_load(Path(str(path)).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError.at(
            "rollout.sglang.server_args.config",
            Kind.NOT_FOUND,
            f"rollout.sglang.server_args.config: '{path}' cannot be read: {error}",
        ) from None
    return value if isinstance(value, dict) else {}
