"""From the backend to the engine: the policy's new weights, in place, under a new version."""

from __future__ import annotations

from agentrl.backends.base import Backend
from agentrl.engines.base import Engine


class Publisher:
    """Publishes a backend's weights to an engine. What is sampled afterwards carries the version."""

    def __init__(self, backend: Backend, engine: Engine) -> None:
        self._backend = backend
        self._engine = engine
        self.version: int | None = None

    async def publish(self, version: int) -> None:
        """Put the current weights into the engine, once a version."""
        if version != self.version:
            await self._engine.load_weights(self._backend.weights(), version)
            self.version = version
