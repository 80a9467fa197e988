"""SGLang servers on the nodes of a Ray cluster: each server has an actor on its node, which starts and stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import ray
from pydantic import JsonValue
from ray import ObjectRef
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup

from agentrl.cluster.actors import Actor, actor_in, own_address, raised_by
from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.servers.server import LocalServer

CHECK_S = 0.5
STOP_S = 10.0
START_S = 60.0
"""Seconds that an actor may take to start, in addition to the time that its server takes to start."""


class ServerActor:
    """A server on the node of this actor; see `LocalServer`."""

    def __init__(self, options: Mapping[str, JsonValue], log_file: Path, env: Mapping[str, str]) -> None:
        self._server = LocalServer(options, log_file, env, own_address())

    async def start(self, timeout_s: float) -> tuple[str, str | None]:
        """Start the server; wait until it accepts requests, and return its URL and API key."""
        self._server.start()
        await self._server.ready(timeout_s)
        return self._server.url, self._server.api_key

    async def ended(self) -> None:
        """Wait until the process of the server has ended."""
        while self._server.alive:  # noqa: ASYNC110  # the process has no event
            await asyncio.sleep(CHECK_S)

    async def stop(self) -> None:
        """Stop the server."""
        await self._server.stop()


class RemoteServer:
    """An SGLang server on a node of the cluster; see `Server`.

    If the node is lost, a restart may move the server to another node.

    Args:
        group: reserved resources, one bundle for each server.
        number: number of the server; the server's bundle in `group` has the same number.
    """

    def __init__(
        self,
        group: PlacementGroup,
        number: int,
        options: Mapping[str, JsonValue],
        log_file: Path,
        env: Mapping[str, str],
    ) -> None:
        self.log_file, self.url = log_file, ""
        self.api_key: str | None = None
        self._group, self._number, self._arguments = group, number, (options, log_file, env)
        self._actor: Actor | None = None
        self._ended: ObjectRef[None] | None = None

    @property
    def alive(self) -> bool:
        """See `Server.alive`."""
        return self._actor is not None and not (self._ended and ray.wait([self._ended], timeout=0)[0])

    def start(self) -> None:
        """See `Server.start`."""
        self._ended, self._actor = None, actor_in(self._group, self._number, ServerActor, *self._arguments)

    async def ready(self, timeout_s: float) -> None:
        """See `Server.ready`.

        Raises:
            ServerError: see `Server.ready`; or no node has room for the server, or its node was lost.
            ConfigError: see `LocalServer.ready`.
        """
        assert self._actor is not None, "it is not started"
        try:
            async with asyncio.timeout(timeout_s + START_S):
                self.url, self.api_key = await self._actor.start.remote(timeout_s)
        except BaseException as error:
            self._kill()
            raise self._readable(error, timeout_s) from None
        self._ended = self._actor.ended.remote()

    async def stop(self) -> None:
        """See `Server.stop`."""
        if self._actor is not None:
            with suppress(RayActorError, RayTaskError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._actor.stop.remote()
            self._kill()

    async def restart(self, timeout_s: float) -> None:
        """See `Server.restart`."""
        self._kill()
        self.start()
        await self.ready(timeout_s)

    def _kill(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None

    def _readable(self, error: BaseException, timeout_s: float) -> BaseException:
        if isinstance(error, RayTaskError):
            return raised_by(error)
        if isinstance(error, RayActorError):
            return ServerError(f"the node of SGLang server {self._number} was lost while the server started")
        if isinstance(error, TimeoutError):
            return ServerError(f"no node had room for SGLang server {self._number} within {timeout_s:g} s")
        return error
