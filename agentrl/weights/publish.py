"""Publish the policy's new weights: overwrite the engine's weights with the backend's, under a new version."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentrl.backends.base import Backend
from agentrl.engines.base import Engine, PauseMode, WeightStream
from agentrl.models.weights_in_place import StreamedWeights
from agentrl.weights.probe import Probe


class Publisher:
    """Publishes a backend's weights to an engine. Tokens sampled afterwards carry the new version.

    A publication reads the backend's weights without copying them first: do not train at the same time.

    Args:
        weights: function that returns the weights under the engine's names; default: the backend's `weights`.
        mode: how the engine treats running requests during a publication; None: the engine decides.
        probe_tokens: tokens sampled after each publication and compared with the backend; 0: no probe.
    """

    def __init__(
        self,
        backend: Backend,
        engine: Engine,
        *,
        weights: Callable[[], WeightStream] | None = None,
        mode: PauseMode | None = None,
        probe_tokens: int = 0,
    ) -> None:
        self._engine = engine
        self._weights = weights or backend.weights
        self._mode = mode
        self._probe = Probe(backend, engine, probe_tokens) if probe_tokens else None
        self._metrics: dict[str, float] = {}
        self.version: int | None = None

    async def publish(self, version: int) -> None:
        """Send the current weights to the engine; does nothing if this version is already published.

        Raises:
            ProbeError: the engine does not sample from the backend's policy.
        """
        if version == self.version:
            return
        if self._mode is not None:
            with self._timed("pause"):
                await self._engine.pause(self._mode)
        try:
            with self._timed("transfer"):
                await self._engine.load_weights(self._counted(), version)
        finally:
            if self._mode is not None:
                await self._engine.resume()
        self.version = version
        if self._probe:
            with self._timed("probe"):
                self._metrics |= await self._probe(version)

    def metrics(self) -> dict[str, float]:
        """Return and clear the metrics of publications since the last call: seconds, bytes, probe results."""
        taken, self._metrics = self._metrics, {}
        return taken

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._metrics[f"publish/{name}_s"] = time.perf_counter() - started

    def _counted(self) -> WeightStream:
        weights = self._weights()
        if isinstance(weights, StreamedWeights):
            self._metrics["publish/num_bytes"] = float(weights.num_bytes())
            return weights
        return self._counted_one_by_one(weights)

    def _counted_one_by_one(self, weights: WeightStream) -> WeightStream:
        num_bytes = 0
        for name, tensor in weights:
            num_bytes += tensor.nbytes
            yield name, tensor
        self._metrics["publish/num_bytes"] = float(num_bytes)
