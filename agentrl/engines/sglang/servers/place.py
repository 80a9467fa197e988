"""Machines on which a run starts its SGLang servers: this machine, or machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from agentrl.engines.sglang.servers.server import LocalServer


class Server(Protocol):
    """A server that the run started. See `LocalServer`; a remote server has its address only when it is ready."""

    log_file: Path

    @property
    def url(self) -> str:
        """Address of the server; a restart may change it."""
        ...

    @property
    def api_key(self) -> str | None:
        """API key of the server; a restart may change it."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the server's process exists; True also for a hung process."""
        ...

    def start(self) -> None:
        """Start the server; `ready` waits until it serves requests."""
        ...

    async def ready(self, timeout_s: float) -> None:
        """Wait until the server serves requests."""
        ...

    async def stop(self) -> None:
        """Stop the server. A second call does nothing."""
        ...

    async def restart(self, timeout_s: float) -> None:
        """Kill the server and start it again with its original weights."""
        ...


MakeServer = Callable[[int, Mapping[str, JsonValue], Path, Mapping[str, str]], Server]
"""(number of the server, options, log file, environment variables) -> a server that is not started yet."""


def on_this_machine(
    number: int, options: Mapping[str, JsonValue], log_file: Path, env: Mapping[str, str]
) -> LocalServer:
    """Return a server on this machine."""
    return LocalServer(options, log_file, env)


_remote: list[MakeServer] = []  # global, because a process belongs to one run


def start_remotely(make: MakeServer) -> None:
    """From now on, use `make` to create all servers that this process starts."""
    _remote[:] = [make]


def are_remote() -> bool:
    """Whether servers may be on other machines."""
    return bool(_remote)


def make_server(number: int, options: Mapping[str, JsonValue], log_file: Path, env: Mapping[str, str]) -> Server:
    """Return server `number`, which is not started yet."""
    make = _remote[0] if _remote else on_this_machine
    return make(number, options, log_file, env)
