"""Client of a resources server of NeMo-Gym."""

from __future__ import annotations

import aiohttp
from pydantic import JsonValue

from agentrl.security.bounded_json import UnreadableAnswerError, read_json
from agentrl.tools.binding import AgentData
from agentrl.tools.environment_servers.base import MAX_ANSWER_BYTES, NUM_TRIES, ServerFailedError
from agentrl.tools.environment_servers.nemo_gym.session import NemoGymSession
from agentrl.tools.environment_servers.nemo_gym.tools_file import read_tools
from agentrl.tools.environment_servers.options import NemoGymOptions
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task
from agentrl.utils.http_client import HttpAnswer, environment_proxy, open_session, request
from agentrl.utils.retries import GaveUpError, Retries, raise_if_busy


class NemoGymServer:
    """Client of the server; opens one session per rollout."""

    def __init__(self, options: NemoGymOptions, tools: list[ToolSchema], api_key: str) -> None:
        self.options, self.tools, self._api_key = options, tools, api_key
        self._retries = Retries(NUM_TRIES, options.max_sessions)
        self._session: aiohttp.ClientSession | None = None

    def session(self, data: AgentData) -> NemoGymSession:
        """Return the session of a rollout."""
        return NemoGymSession(self._post, self._retries, self.options, self.tools, data)

    def check_row(self, task: Task) -> None:
        """Accept every row: a row without `responses_create_params` is sent with its prompt."""

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, body: bytes, timeout_s: float | None, cookie: str) -> HttpAnswer:
        if self._session is None:
            self._session = _client(self.options, self._api_key)
        headers = {"Cookie": cookie} if cookie else None
        url = f"{self.options.url}{path}"
        return await request(
            self._session, "POST", url, body, timeout_s, headers, MAX_ANSWER_BYTES, follow_redirects=False
        )


def _client(options: NemoGymOptions, api_key: str) -> aiohttp.ClientSession:
    proxy = environment_proxy(options.url)
    # the client keeps no cookies, because each session keeps its own cookies
    return open_session(options.max_sessions, api_key or None, proxy, keeps_cookies=False)


async def reach_nemo_gym(options: NemoGymOptions, api_key: str) -> NemoGymServer:
    """Return the client of a running server.

    Raises:
        ServerFailedError: the server does not answer, has no endpoint for a tool, or a tool cannot be offered.
    """
    tools = [] if options.tools is None else read_tools(options.tools)
    async with _client(options, api_key) as session:
        try:
            paths = await Retries(NUM_TRIES, 1).run(lambda: _paths(session, options), b"")
        except GaveUpError as error:
            raise ServerFailedError(str(error)) from None
    if not {"/seed_session", "/verify"} <= paths:
        raise ServerFailedError("not a resources server: /openapi.json does not list both /seed_session and /verify")
    if not any("{" in path for path in paths):  # a path with a parameter may serve several tools
        for tool in tools:
            if f"/{tool.name}" not in paths:
                raise ServerFailedError(f"it has no endpoint for tool '{tool.name}' of {options.tools}")
    return NemoGymServer(options, tools, api_key)


async def _paths(session: aiohttp.ClientSession, options: NemoGymOptions) -> set[str]:
    url = f"{options.url}/openapi.json"
    answer = await request(session, "GET", url, None, options.start_timeout_s, max_bytes=MAX_ANSWER_BYTES)
    raise_if_busy(answer.status, answer.headers, f"status {answer.status} of /openapi.json")
    try:
        content: JsonValue = read_json(answer.content)
    except UnreadableAnswerError as error:
        raise ServerFailedError(f"/openapi.json is {error}") from None
    paths = content.get("paths") if isinstance(content, dict) else None
    if answer.status != 200 or not isinstance(paths, dict):
        raise ServerFailedError(
            f"it is no resources server: /openapi.json answers {answer.status} {answer.excerpt(100)}"
        )
    return set(paths)
