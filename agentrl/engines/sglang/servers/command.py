"""Command and environment that start an SGLang server."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.errors import ConfigError, Kind
from agentrl.utils.network import interface_of

Options: TypeAlias = dict[str, JsonValue]
"""Options of `python -m sglang.launch_server` in snake case: true sets a flag; false and null omit the option."""

LOOPBACK = "127.0.0.1"
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",  # SGLang is very slow with two threads
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
}
OF_A_RANK = re.compile(r"((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+")
"""Environment variables that `torchrun` sets for each process (docs.pytorch.org, torch.distributed.elastic)."""


def server_command(options: Mapping[str, JsonValue], port: int, host: str = LOOPBACK) -> list[str]:
    """Command that starts a server at an address of this machine; the server's weights have policy version 0."""
    own: Options = {"host": host, "port": port, "weight_version": "0"}
    return [sys.executable, "-m", "sglang.launch_server", *_arguments({**options, **own})]


def server_environment(
    options: Mapping[str, JsonValue], env: Mapping[str, str], host: str = LOOPBACK
) -> dict[str, str]:
    """Return the environment of a server with `options` at the address `host`; variables in `env` have precedence.

    Variables of `torchrun` are removed: with them, a server would wait for the other processes of the launcher.
    """
    cpu = CPU_ENVIRONMENT if options.get("device") == "cpu" else {}
    # on a single node, all gloo peers are on the network of `host`
    interface = interface_of(host) if options.get("nnodes", 1) == 1 else None
    local = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    own = {name: value for name, value in os.environ.items() if not OF_A_RANK.fullmatch(name)}
    return {**local, **own, **cpu, **env}


def num_gpus(given: Mapping[str, JsonValue]) -> int:
    """Return the number of GPUs of a server with the options `given`, whose names are in snake case.

    Raises:
        ConfigError: `tp_size` or `pp_size` is not an integer.
    """
    return (integer(given, "tp_size") or 1) * (integer(given, "pp_size") or 1)


def integer(given: Mapping[str, JsonValue], key: str) -> int | None:
    """Return an integer option, None if it is not given.

    Raises:
        ConfigError: the option is not an integer.
    """
    value = given.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ConfigError.at(
        f"rollout.sglang.server_args.{key}",
        Kind.WRONG_VALUE,
        f"rollout.sglang.server_args.{key} must be an integer, not {value!r}",
    )


def _arguments(options: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, value in options.items():
        if value is None or value is False:
            continue
        yield "--" + key.lstrip("-").replace("_", "-")
        if isinstance(value, list):
            yield from map(_text, value)
        elif value is not True:
            yield _text(value)


def _text(value: JsonValue) -> str:
    """Text of a value on the command line: JSON unless it is a string."""
    return value if isinstance(value, str) else json.dumps(value)
