"""State of one SGLang server: its client, features, policy version and health."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import Features

if TYPE_CHECKING:
    from agentrl.engines.sglang.servers.place import Server


class Health(StrEnum):
    """Whether a replica is in service."""

    READY = "ready"
    SUSPECT = "suspect"  # a request got no answer: no new requests until a health check succeeds
    OUT = "out"  # dead, hung, or its weights may be mixed: no requests until it recovers
    STARTING = "starting"


@dataclass(eq=False, slots=True)
class Replica:
    """A server with its state.

    Attributes:
        process: the server's process; None for an external server, which this run cannot restart.
        version: policy version of the server's weights.
        num_running: number of running requests.
        num_restarts: number of restarts.
    """

    client: ServerClient
    features: Features
    process: Server | None = None
    version: int = 0
    health: Health = Health.READY
    num_running: int = 0
    num_restarts: int = 0

    @property
    def may_serve(self) -> bool:
        """Whether pauses and weight updates include the replica.

        A `SUSPECT` replica is included, because it may be healthy.
        """
        return self.health in (Health.READY, Health.SUSPECT)

    @property
    def name(self) -> str:
        """Name in error messages: the server's URL, and its log file if this run started the server."""
        return self.client.url if self.process is None else f"{self.client.url} (log: {self.process.log_file})"

    async def name_weights(self, version: str) -> None:
        """Set the weight version that the server reports for its current weights."""
        await self.client.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def restart(self, timeout_s: float) -> None:
        """Restart a server that this run started. After the restart, the server may be on another machine.

        Raises:
            ServerError, ConfigError: see `LocalServer.ready`.
        """
        assert self.process is not None
        await self.process.restart(timeout_s)
        await self.client.move(self.process.url, self.process.api_key)

    async def leave(self) -> None:
        """Stop the server if this run started it, and close the connections."""
        if self.process is not None:
            await self.process.stop()
        await self.client.close()
