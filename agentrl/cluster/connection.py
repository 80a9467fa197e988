"""Connect to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.config.rules.unused import wrong
from agentrl.errors import ConfigError, Kind, install_command

CONNECT_S = 5.0
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SCHEDULER_EVENTS": "0"}
"""Environment variables for Ray: it then sends no statistics to its authors and prints no scheduler messages."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to the Ray cluster. When the block ends, Ray ends the processes that this process started.

    Args:
        address: address of the cluster. None: `RAY_ADDRESS`, or if that is not set, the cluster that runs on this
            machine.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own code uses deprecated functions
            import ray
    except ImportError:
        text = f"several nodes need Ray: {install_command('ray')}"
        raise ConfigError(wrong("trainer.nnodes", text, Kind.OTHER)) from None
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _check_port(where)
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        text = f"no Ray cluster answers at '{where}': {reason}. Start one with `ray start --head`"
        raise ConfigError(wrong("cluster.address", text, Kind.NOT_FOUND, value=address)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_port(address: str) -> None:
    """Raise an OSError at once if nothing answers at `address`, because Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_S).close()
