"""Command and environment that start an SGLang server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pydantic import JsonValue

Options: TypeAlias = dict[str, JsonValue]
"""Options of `python -m sglang.launch_server` in snake case: true is a flag; false and null omit the option."""

CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",  # SGLang is very slow with two threads
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
}


def server_command(options: Mapping[str, JsonValue], port: int) -> list[str]:
    """Command that starts a server on the loopback address at `port`; its weights have policy version 0."""
    own: Options = {"host": "127.0.0.1", "port": port, "weight_version": "0"}
    return [sys.executable, "-m", "sglang.launch_server", *_arguments({**options, **own})]


def server_environment(options: Mapping[str, JsonValue], env: Mapping[str, str]) -> dict[str, str]:
    """Environment of a server with these options; `env` has precedence."""
    cpu = CPU_ENVIRONMENT if options.get("device") == "cpu" else {}
    # on one machine, all gloo peers are local
    local = {} if options.get("nnodes", 1) != 1 else {"GLOO_SOCKET_IFNAME": "lo"}
    return {**local, **os.environ, **cpu, **env}


def snake_case(key: str) -> str:
    """--tp-size -> tp_size."""
    return key.lstrip("-").replace("-", "_")


def _arguments(options: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, value in options.items():
        if value is None or value is False:
            continue
        yield "--" + snake_case(key).replace("_", "-")
        if isinstance(value, list):
            yield from map(_text, value)
        elif value is not True:
            yield _text(value)


def _text(value: JsonValue) -> str:
    """Text of a value on the command line: JSON unless it is a string."""
    return value if isinstance(value, str) else json.dumps(value)
