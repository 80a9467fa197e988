"""Configuration of MCP servers: the `mcpServers` JSON of other clients, and one server in a YAML file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, ValidationError

from agentrl.config.base import Section
from agentrl.config.uses import ADDRESS, PLAIN, SECRET, code
from agentrl.errors import ConfigError, suggestion
from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.security.redaction import is_secret_name, remember_secret

Kind = Literal["stdio", "http", "sse"]
_TYPES: Mapping[str, Kind] = {
    **dict.fromkeys(("http", "streamable-http", "streamable_http", "streamablehttp"), "http"),
    "stdio": "stdio",
    "sse": "sse",
}
_OF_OTHER_CLIENTS = frozenset({"autoApprove", "alwaysAllow", "description", "trust"})
"""Ignored keys: in other clients, they control the approval of calls or have no effect."""
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}")


class McpServer(Section):
    """How to reach a server: a command to start, or an address."""

    name: Annotated[str, Field(min_length=1, max_length=100), PLAIN]
    kind: Kind
    command: Annotated[str, code()] = ""
    args: Annotated[tuple[str, ...], code()] = ()
    env: Annotated[dict[str, str], SECRET] = Field(default_factory=dict)
    cwd: Annotated[Path, code()] = Path()
    url: Annotated[str, ADDRESS] = ""
    headers: Annotated[dict[str, str], SECRET] = Field(default_factory=dict)


class _Given(Section):
    """A server as it is written in the file. Values that are not text, such as a port number, are converted to text."""

    type: Annotated[str, PLAIN] | None = None
    command: Annotated[str, code()] | None = None
    args: Annotated[list[str | int | float], code()] = Field(default_factory=list)
    env: Annotated[dict[str, str | int | float], SECRET] = Field(default_factory=dict)
    cwd: Annotated[str, code()] | None = None
    url: Annotated[str, ADDRESS] | None = None
    headers: Annotated[dict[str, str | int | float], SECRET] = Field(default_factory=dict)
    auth_token: Annotated[str, SECRET] | None = None
    disabled: bool = False


def servers_of_file(path: Path) -> list[McpServer]:
    """Return the servers of a JSON file, without disabled ones.

    Raises:
        ConfigError: the file is missing or not in the format of `mcpServers`. The error has one problem per wrong
            server.
    """
    try:
        content = read_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError.keyless(f"there is no file '{path}'") from None
    except OSError as error:
        raise ConfigError.keyless(f"{path} cannot be read: {error.strerror}") from error
    except UnreadableAnswerError as error:
        raise ConfigError.keyless(f"{path}: {error}") from None
    listed = content.get("mcpServers") if isinstance(content, dict) else None
    if not isinstance(listed, dict):
        raise ConfigError.keyless(f"{path}: expected an object with the key 'mcpServers'")
    return _each(path, listed)


def _each(path: Path, listed: Mapping[str, JsonValue]) -> list[McpServer]:
    servers, problems = [], []
    for name, given in listed.items():
        try:
            servers.append(server_of(name, _expanded(given), path.parent))
        except ConfigError as error:
            problems.append(f"{path}: server '{name}': {error}")
    if problems:
        raise ConfigError.keyless(*problems)
    found = [server for server in servers if server is not None]
    if not found:
        raise ConfigError.keyless(f"{path}: no server is listed under 'mcpServers'")
    return found


def server_of(name: str, given: JsonValue, folder: Path) -> McpServer | None:
    """Return a server; None if it is disabled.

    Args:
        given: the server as an object of the file.
        folder: default working folder of the server's command.

    Raises:
        ConfigError: a key is unknown or wrong, or keys contradict each other.
    """
    if not isinstance(given, Mapping):
        raise ConfigError.keyless(f"expected an object, not {given!r:.100}")
    keys = {key: value for key, value in given.items() if key not in _OF_OTHER_CLIENTS}
    if "timeout" in keys:
        raise ConfigError.keyless("'timeout' has another unit in each client: set 'timeout_s' in the YAML file")
    for key in keys:
        if key not in _Given.model_fields:
            raise ConfigError.keyless(f"unknown key '{key}': {suggestion(key, _Given.model_fields)}")
    try:
        read = _Given.model_validate(keys)
        return None if read.disabled else _checked(name, read, folder)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        raise ConfigError.keyless(f"'{'.'.join(map(str, problem['loc']))}': {problem['msg']}") from None


def _checked(name: str, given: _Given, folder: Path) -> McpServer:
    if (given.command is None) == (given.url is None):
        raise ConfigError.keyless("a server needs either 'command' or 'url'")
    kind = _kind(given)
    if (kind == "stdio") != (given.url is None):
        raise ConfigError.keyless(f"type '{given.type}' does not go with '{'command' if given.url is None else 'url'}'")
    if given.url is not None:
        return _at_address(name, kind, given, given.url)
    if given.headers or given.auth_token:
        raise ConfigError.keyless("'headers' and 'auth_token' need 'url'")
    return McpServer(
        name=name,
        kind=kind,
        command=given.command or "",
        args=tuple(map(str, given.args)),
        env={key: _noted(key, str(value)) for key, value in given.env.items()},
        cwd=(folder / Path(given.cwd or ".").expanduser()).absolute(),
    )


def _at_address(name: str, kind: Kind, given: _Given, url: str) -> McpServer:
    if given.args or given.env or given.cwd:
        raise ConfigError.keyless("'args', 'env' and 'cwd' need 'command'")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError.keyless("'url': expected an address that begins with http:// or https://")
    headers = {key: str(value) for key, value in given.headers.items()}
    if given.auth_token is not None:
        headers["Authorization"] = f"Bearer {given.auth_token}"
    for value in headers.values():
        remember_secret(value)
        remember_secret(value.partition(" ")[2])  # the token alone, without a word such as Bearer, is also secret
    return McpServer(name=name, kind=kind, url=url, headers=headers)


def _kind(given: _Given) -> Kind:
    if given.type is not None:
        if (kind := _TYPES.get(given.type.lower())) is None:
            raise ConfigError.keyless(
                f"unknown type '{given.type}': {suggestion(given.type, ('stdio', 'http', 'sse'))}"
            )
        return kind
    if given.url is None:
        return "stdio"
    return "sse" if given.auth_token is not None or urlsplit(given.url).path.rstrip("/").endswith("/sse") else "http"


def _noted(name: str, value: str) -> str:
    if is_secret_name(name):
        remember_secret(value)
    return value


def _expanded(value: JsonValue) -> JsonValue:
    """Replace `${NAME}` and `${NAME:-default}` in all texts by environment variables."""
    if isinstance(value, dict):
        return {key: _expanded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner) for inner in value]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(found: re.Match[str]) -> str:
    if (value := os.environ.get(found[1])) is not None:
        remember_secret(value)
        return value
    if found[2] is None:
        raise ConfigError.keyless(f"the environment variable {found[1]} is not set")
    return found[2]
