"""One rollout on an OpenEnv server: a WebSocket with the messages `reset`, `step` and `close`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import orjson
from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.environment_servers.base import MAX_ANSWER_BYTES, Step
from agentrl.tools.environment_servers.openenv.answers import (
    BUSY,
    FAILED,
    REFUSED,
    ErrorReplyError,
    Observed,
    read_message,
)
from agentrl.tools.environment_servers.openenv.tools import OpenEnvTools
from agentrl.tools.environment_servers.options import OpenEnvOptions
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError

_CLOSE_S = 5.0


class Socket:
    """A WebSocket on which each message gets one answer."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def ask(self, kind: str, data: Mapping[str, JsonValue]) -> Observed:
        """Send a message and return the observation.

        Raises:
            ErrorReplyError: the server answers with an error.
            InfraError: the connection is lost, or the answer is not an OpenEnv message.
        """
        try:
            await self._socket.send_str(orjson.dumps({"type": kind, "data": data}).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise InfraError(f"the connection is lost: {type(error).__name__} {error}".rstrip()) from error
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise InfraError(_why_lost(message, self._socket.close_code))
        return read_message(message.data)

    async def close(self) -> None:
        """Send a close message and close the connection."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                if not self._socket.closed:
                    await self._socket.send_str('{"type":"close"}')
                await self._socket.close()


def _why_lost(message: aiohttp.WSMessage, code: int | None) -> str:
    if message.type is aiohttp.WSMsgType.BINARY:
        return "the server sent a binary message"
    reason = f" {message.data}" if message.type is aiohttp.WSMsgType.ERROR else ""
    return f"the server closed the connection (code {code}){reason}"[:300]


async def connect(session: aiohttp.ClientSession, options: OpenEnvOptions) -> Socket:
    """Open a WebSocket.

    Raises:
        TryAgainError: the server cannot be reached or refuses the connection.
    """
    url = f"ws{options.url.removeprefix('http')}/ws"
    try:
        return Socket(await session.ws_connect(url, max_msg_size=MAX_ANSWER_BYTES))
    except (aiohttp.ClientError, OSError) as error:
        raise TryAgainError(f"{type(error).__name__} {error}".rstrip()) from error


@dataclass(frozen=True, slots=True)
class Place:
    """Data of the rollout that the connection needs.

    Attributes:
        where: server and row, for error messages.
        reset: arguments of the message `reset`.
    """

    where: str
    reset: Mapping[str, JsonValue]


class Connection:
    """The session of a rollout."""

    def __init__(
        self,
        open_session: Callable[[], aiohttp.ClientSession],
        retries: Retries,
        options: OpenEnvOptions,
        tools: OpenEnvTools,
        place: Place,
    ) -> None:
        self._open_session, self._retries = open_session, retries
        self._options, self._tools, self._place = options, tools, place
        self._socket: Socket | None = None
        self._rewards: list[float] = []

    async def start(self) -> str:
        """Connect and reset; see `ServerSession.start`."""
        where = self._place.where
        try:
            observed = await self._retries.run(self._try_start, where.encode())
            text = self._tools.text(observed.observation)
        except (GaveUpError, InfraError) as error:
            raise InfraError(f"{where}: {error}") from error
        return f"\n\n{text}" if text else ""

    async def act(self, tool: str, arguments: Mapping[str, JsonValue]) -> Step:
        """Run an action; see `ServerSession.act`."""
        assert self._socket is not None  # the episode calls `start` first
        try:
            observed = await self._socket.ask("step", self._tools.action(tool, arguments))
        except ErrorReplyError as error:
            if error.code in (REFUSED, FAILED):
                raise ToolError(str(error)) from None
            raise InfraError(f"{self._place.where}: {error.code}: {error}") from None
        except InfraError as error:
            raise InfraError(f"{self._place.where}: {error}") from error
        if observed.reward is not None:
            self._rewards.append(observed.reward)
        return Step(self._tools.answer(observed.observation), observed.reward, observed.done)

    async def reward(self) -> float:
        """Return the sum of the rewards, or the last reward (option `reward`); 0 without rewards."""
        return sum(self._rewards) if self._options.reward == "sum" else (self._rewards or [0.0])[-1]

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close()

    async def _try_start(self) -> Observed:
        await self.close()
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                self._socket = await connect(self._open_session(), self._options)
                return await self._socket.ask("reset", self._place.reset)
        except TimeoutError:
            raise TryAgainError(f"no answer in {self._options.start_timeout_s:g} seconds") from None
        except InfraError as error:
            raise TryAgainError(f"{error}{self._hint(str(error))}") from error
        except ErrorReplyError as error:
            if error.code == REFUSED:
                raise DataError(f"{self._place.where}: the server refuses the arguments of reset: {error}") from None
            raise TryAgainError(f"{error.code}: {error}{self._hint(error.code)}") from None

    def _hint(self, why: str) -> str:
        if BUSY not in why and "code 1000" not in why:
            return ""
        return (
            f"; the server may accept fewer sessions than max_sessions={self._options.max_sessions}: its own limit is"
            " max_concurrent_envs, by default 1"
        )
