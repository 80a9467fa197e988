"""An OpenEnv server with a game: the model guesses a number. This file runs in openenv's Python environment.

python guess_server.py PORT MAX_SESSIONS

With the environment variable GAME=listed, the server runs another game. The server offers the tools of that game over
MCP, so clients can list them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class GuessAction(Action):
    """Guess the number."""

    guess: int = Field(..., description="from 1 to 9")


class GuessObservation(Observation):
    message: str
    tries: int


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, low: int = 1, **_: Any) -> GuessObservation:
        self._number = low + (0 if seed is None else seed) % 9
        return GuessObservation(message=f"Guess a number from {low} to {low + 8}.", tries=0, reward=0.0)

    def step(self, action: GuessAction, **_: Any) -> GuessObservation:
        if action.guess < 0:
            raise ValueError("the guess is negative")
        hint = "right" if action.guess == self._number else "higher" if action.guess < self._number else "lower"
        reward = 1.0 if hint == "right" else -0.1
        return GuessObservation(message=hint, tries=1, reward=reward, done=hint == "right")

    @property
    def state(self) -> State:
        return State()


class ListedEnvironment(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        from fastmcp import FastMCP

        server = FastMCP("game")

        @server.tool
        def add(a: int, b: int) -> str:
            """Add two numbers."""
            if a == 13:
                raise ValueError("13 is bad luck")
            return str(a + b)

        super().__init__(server)

    def reset(self, **_: Any) -> Observation:
        return Observation()

    def _step_impl(self, action: Action, **_: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    port, most = map(int, sys.argv[1:])
    kinds = (ListedEnvironment, CallToolAction, CallToolObservation)
    if os.environ.get("GAME") != "listed":
        kinds = (GuessEnvironment, GuessAction, GuessObservation)
    uvicorn.run(create_fastapi_app(*kinds, max_concurrent_envs=most), port=port, log_level="warning")
