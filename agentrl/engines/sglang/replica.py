"""One SGLang server as the engine sees it: how to speak to it, what it can do, which weights it holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.features import Features

if TYPE_CHECKING:
    from agentrl.engines.sglang.server import LocalServer


class Health(StrEnum):
    """Whether a replica is in service."""

    READY = "ready"
    SUSPECT = "suspect"  # a request got no answer: no other is sent to it until it was looked at
    OUT = "out"  # dead, hung, or its weights may be mixed: nothing is sent to it until it was restarted
    STARTING = "starting"


@dataclass(eq=False, slots=True)
class Replica:
    """A server and what is known of it.

    Attributes:
        process: None for a server that somebody else started: it can be left, not restarted.
        version: the policy version of its weights.
        num_running: requests under way.
        num_restarts: how often it was started again.
    """

    client: ServerClient
    features: Features
    process: LocalServer | None = None
    version: int = 0
    health: Health = Health.READY
    num_running: int = 0
    num_restarts: int = 0

    @property
    def may_serve(self) -> bool:
        """Whether it takes part in pauses and updates: a suspect may be found well a moment later."""
        return self.health in (Health.READY, Health.SUSPECT)

    @property
    def name(self) -> str:
        """How errors name it: its address, and its log file where it was started here."""
        return self.client.url if self.process is None else f"{self.client.url} (log: {self.process.log_file})"

    async def name_weights(self, version: str) -> None:
        """What its answers call the weights it holds, from here on."""
        await self.client.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def leave(self) -> None:
        """Stop the server if it was started here, and close the connections."""
        if self.process is not None:
            await self.process.stop()
        await self.client.close()
