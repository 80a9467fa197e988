"""One rollout on a resources server: its session cookie, the calls of tools, and the verification."""

from __future__ import annotations

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

import orjson
from pydantic import JsonValue

from agentrl.errors import DataError
from agentrl.security.bounded_json import UnreadableAnswerError, read_json, read_text
from agentrl.tools.base import InfraError, ToolError
from agentrl.tools.binding import AgentData
from agentrl.tools.environment_servers.base import Step, finite
from agentrl.tools.environment_servers.nemo_gym.responses import PARAMS, request_params, response_object
from agentrl.tools.environment_servers.options import NemoGymOptions
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task
from agentrl.utils.http_client import HttpAnswer, NoAnswerError
from agentrl.utils.retries import GaveUpError, Retries, raise_if_busy

_OF_AGENTRL = ("tool_config", "tool_selection", "text_prompt")
_MAX_COOKIES = 20
_BUSY = (408, 409, 425, 429, 502, 503, 504)
"""HTTP statuses that mean that the server did not run the tool. Status 500 means that the tool's code failed."""


class Post(Protocol):
    """Sends a request to the server."""

    async def __call__(self, path: str, body: bytes, timeout_s: float | None, cookie: str) -> HttpAnswer:
        """Return the answer, even if its status is an error.

        Raises:
            NoAnswerError: there is no readable answer.
        """
        ...


class NemoGymSession:
    """The session of a rollout."""

    def __init__(
        self, post: Post, retries: Retries, options: NemoGymOptions, tools: list[ToolSchema], data: AgentData
    ) -> None:
        self._post, self._retries, self._options = post, retries, options
        self._tools, self._data = tools, data
        self._cookies: dict[str, str] = {}
        self._where = f"row {data.task.index}: NeMo-Gym server {options.url}"

    async def start(self) -> str:
        """Send the row to `/seed_session`; see `ServerSession.start`. Nothing is added to the prompt."""
        body = orjson.dumps(row_of(self._data.task, self._tools))
        try:
            await self._retries.run(lambda: self._seed(body), body)
        except GaveUpError as error:
            raise InfraError(f"{self._where}: {error}") from error
        return ""

    async def act(self, tool: str, arguments: Mapping[str, JsonValue]) -> Step:
        """Post the arguments to the endpoint of the tool; see `ServerSession.act`."""
        answer = await self._once(f"/{tool}", orjson.dumps(arguments), None)
        if answer.status in _BUSY:
            raise InfraError(f"{self._where}: /{tool} answers {answer.status} {answer.excerpt(300)}")
        text = read_text(answer.content)
        if not 200 <= answer.status < 300:
            raise ToolError(text or f"status {answer.status}")
        return Step(text)

    async def reward(self) -> float:
        """Send the row and the conversation to `/verify`; return the reward that the server sends back."""
        row = row_of(self._data.task, self._tools)
        response = response_object(self._data.task, self._data.messages, self._tools)
        answer = await self._once(
            "/verify", orjson.dumps({**row, "response": response}), self._options.verify_timeout_s
        )
        if answer.status != 200:
            raise InfraError(f"{self._where}: /verify answers {answer.status} {answer.excerpt(300)}")
        try:
            content = read_json(answer.content)
        except UnreadableAnswerError as error:
            raise InfraError(f"{self._where}: /verify answers {error}") from None
        if not isinstance(content, dict):
            raise InfraError(f"{self._where}: /verify answers {answer.excerpt(100)}, expected an object with 'reward'")
        return finite(content.get("reward"))

    async def close(self) -> None:
        """Do nothing: the protocol has no message that ends a session."""

    async def _seed(self, body: bytes) -> None:
        answer = await self._send("/seed_session", body, self._options.start_timeout_s)
        why = f"/seed_session answers {answer.status} {answer.excerpt(300)}"
        raise_if_busy(answer.status, answer.headers, why)
        if answer.status != 200:
            raise DataError(f"{self._where}: {why}")

    async def _once(self, path: str, body: bytes, timeout_s: float | None) -> HttpAnswer:
        try:
            return await self._send(path, body, timeout_s)
        except NoAnswerError as error:
            raise InfraError(f"{self._where}: {path}: {error}") from error

    async def _send(self, path: str, body: bytes, timeout_s: float | None) -> HttpAnswer:
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        answer = await self._post(path, body, timeout_s, cookie)
        for name, value in answer.headers.items():
            if name.lower() == "set-cookie" and len(self._cookies) < _MAX_COOKIES:
                self._cookies.update(_cookies(value))
        return answer


def _cookies(header: str) -> dict[str, str]:
    try:
        return {name: morsel.coded_value for name, morsel in SimpleCookie(header).items()}
    except CookieError:
        return {}


def row_of(task: Task, tools: list[ToolSchema]) -> dict[str, JsonValue]:
    """Return the row in the server's format: the row's columns, and the request."""
    columns = {name: value for name, value in task.extra_info.items() if name not in _OF_AGENTRL}
    if task.ground_truth is not None and "answer" not in columns:
        columns["ground_truth"] = task.ground_truth
    return {**columns, PARAMS: request_params(task, tools)}
