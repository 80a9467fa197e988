"""From options to the command and the environment that start an SGLang server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from pydantic import JsonValue

Options: TypeAlias = dict[str, JsonValue]
"""Of `python -m sglang.launch_server`, in snake case: true is a flag, false and null leave it out."""

CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",  # with two it crawls
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
}


def server_command(options: Mapping[str, JsonValue], port: int) -> list[str]:
    """The command that serves on this machine alone, at `port`; its weights are policy version 0."""
    own: Options = {"host": "127.0.0.1", "port": port, "weight_version": "0"}
    return [sys.executable, "-m", "sglang.launch_server", *_arguments({**options, **own})]


def server_environment(options: Mapping[str, JsonValue], env: Mapping[str, str]) -> dict[str, str]:
    """Environment of a server with these options; what `env` says wins."""
    cpu = CPU_ENVIRONMENT if options.get("device") == "cpu" else {}
    return {**os.environ, **cpu, **env}


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
    """As it is typed on a command line: JSON for what has parts."""
    return value if isinstance(value, str) else json.dumps(value)
