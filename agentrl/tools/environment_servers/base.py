"""Interfaces and errors that all clients of environment servers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from agentrl.tools.base import InfraError
from agentrl.tools.binding import AgentData
from agentrl.tools.environment_servers.options import Options
from agentrl.types.messages import ToolSchema
from agentrl.types.task import Task

MAX_ANSWER_BYTES = 4 * 2**20
"""Maximum size of an answer of a server."""
NUM_TRIES = 5
"""Maximum number of attempts to start the environment of a rollout. Actions are never repeated."""


def finite(reward: JsonValue) -> float:
    """Return a reward that a server sent; the JSON value true counts as 1.

    Raises:
        InfraError: the reward is not a finite number.
    """
    value = float(reward) if isinstance(reward, int | float) else math.nan
    if not math.isfinite(value):
        raise InfraError(f"expected a finite number as 'reward', the server sent {reward!r:.100}")
    return value


class ServerFailedError(Exception):
    """The server cannot be used; the message is one line with the reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """The server's answer to an action.

    Attributes:
        reward: reward of the action; None if the server sends none.
        done: whether the episode has ended.
    """

    text: str
    reward: float | None = None
    done: bool = False


class ServerSession(Protocol):
    """One rollout on the server. Methods are called one at a time."""

    async def start(self) -> str:
        """Start the environment; return text for the prompt. The start is repeated if the server is busy or fails.

        Raises:
            InfraError: the server failed.
            DataError: the server does not accept the row.
        """
        ...

    async def act(self, tool: str, arguments: Mapping[str, JsonValue]) -> Step:
        """Run an action. The request is never repeated.

        Raises:
            ToolError: the server refuses the action, or the environment's code failed.
            InfraError: the server failed.
        """
        ...

    async def reward(self) -> float:
        """Return the reward of the rollout.

        Raises:
            InfraError: the server failed.
        """
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class EnvironmentServer(Protocol):
    """Client of one server, for one event loop."""

    @property
    def options(self) -> Options:
        """The server's options."""
        ...

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools that the model sees."""
        ...

    def session(self, data: AgentData) -> ServerSession:
        """Return the session of a rollout, not yet started."""
        ...

    def check_row(self, task: Task) -> None:
        """Reject a row that the server cannot use.

        Raises:
            DataError: the message names the field.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
