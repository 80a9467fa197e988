"""Client of an OpenEnv server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp
from pydantic import JsonValue

from agentrl.errors import DataError, suggestion
from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.base import InfraError
from agentrl.tools.binding import AgentData
from agentrl.tools.environment_servers.base import MAX_ANSWER_BYTES, NUM_TRIES, ServerFailedError
from agentrl.tools.environment_servers.openenv.answers import ErrorReplyError
from agentrl.tools.environment_servers.openenv.connection import Connection, Place, connect
from agentrl.tools.environment_servers.openenv.tools import OpenEnvTools, action_tool, listed_tools, lists_tools
from agentrl.tools.environment_servers.options import OpenEnvOptions
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task
from agentrl.utils.http_client import environment_proxy, open_session, request
from agentrl.utils.retries import GaveUpError, Retries, TryAgainError, raise_if_busy

_MAX_SEED = 2**31


class OpenEnvServer:
    """Client of the server; opens one session per rollout."""

    def __init__(self, options: OpenEnvOptions, tools: OpenEnvTools, api_key: str) -> None:
        self.options, self._tools, self._api_key = options, tools, api_key
        self._retries = Retries(NUM_TRIES, options.max_sessions)
        self._session: aiohttp.ClientSession | None = None

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model sees."""
        return self._tools.schemas

    def session(self, data: AgentData) -> Connection:
        """Return the session of a rollout. Rollouts of a group start with the same seed."""
        row = {name: data.task.extra_info.get(name) for name in self.options.reset}
        place = Place(
            f"row {data.task.index}: OpenEnv server {self.options.url}",
            {"seed": data.group_seed % _MAX_SEED, **row},
        )
        return Connection(self._opened, self._retries, self.options, self._tools, place)

    def check_row(self, task: Task) -> None:
        """Reject a row that lacks a column listed under the key `reset`."""
        for name in self.options.reset:
            if name not in task.extra_info:
                hint = suggestion(name, task.extra_info)
                raise DataError(f"the OpenEnv server needs the column '{name}' (its key 'reset'): {hint}")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = _client(self.options, self._api_key)
        return self._session


def _client(options: OpenEnvOptions, api_key: str) -> aiohttp.ClientSession:
    return open_session(options.max_sessions, api_key or None, environment_proxy(options.url))


async def reach_openenv(options: OpenEnvOptions, api_key: str) -> OpenEnvServer:
    """Return the client of a running server.

    Raises:
        ServerFailedError: the server does not answer, or its tools cannot be offered.
    """
    async with _client(options, api_key) as session:
        try:
            action = await Retries(NUM_TRIES, 1).run(lambda: _schema(session, options), b"")
        except GaveUpError as error:
            raise ServerFailedError(str(error)) from None
        listed = lists_tools(action)
        if listed and (given := {"tool", "description"} & options.model_fields_set):
            raise ServerFailedError(f"the server lists its own tools, so '{min(given)}' has no effect")
        schemas = listed_tools(await _list(session, options)) if listed else [action_tool(action, options)]
    return OpenEnvServer(options, OpenEnvTools(schemas, listed, options.observation), api_key)


async def _schema(session: aiohttp.ClientSession, options: OpenEnvOptions) -> Mapping[str, JsonValue]:
    answer = await request(
        session, "GET", f"{options.url}/schema", None, options.start_timeout_s, max_bytes=MAX_ANSWER_BYTES
    )
    raise_if_busy(answer.status, answer.headers, f"status {answer.status} of /schema")
    try:
        content = read_json(answer.content) if answer.status == 200 else None
    except UnreadableAnswerError as error:
        raise ServerFailedError(f"/schema is {error}") from None
    action = content.get("action") if isinstance(content, dict) else None
    if not isinstance(action, dict):
        raise ServerFailedError(f"not an OpenEnv server: /schema answers {answer.status} {answer.excerpt(100)}")
    return action


async def _list(session: aiohttp.ClientSession, options: OpenEnvOptions) -> JsonValue:
    try:
        async with asyncio.timeout(options.start_timeout_s):
            socket = await connect(session, options)
            try:
                return (await socket.ask("step", {"type": "list_tools"})).observation.get("tools")
            finally:
                await socket.close()
    except (TryAgainError, InfraError, ErrorReplyError, TimeoutError) as error:
        raise ServerFailedError(f"it does not list its tools: {type(error).__name__} {error}") from None
