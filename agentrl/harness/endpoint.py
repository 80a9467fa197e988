"""The argument `endpoint` that the function of a harness gets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentrl.harness.commands import CommandResult, TaskCommands


class FunctionFailedError(Exception):
    """A function in another interpreter raised an exception. The text of this error is the exception's traceback."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Addresses of the model, and a method that runs commands in the sandbox.

    Attributes:
        base_url: address that ends with /v1, for the Chat Completions and Responses interfaces.
        root_url: the same address without /v1, for the Messages interface.
    """

    base_url: str
    root_url: str
    key: str
    model: str
    commands: TaskCommands = field(repr=False)

    async def run_command(self, command: str, timeout_s: float | None = None) -> CommandResult:
        """Run a shell command in the sandbox of the task folder; see `TaskCommands.run`.

        Args:
            timeout_s: seconds until the command is ended; None: `rollout.multi_turn.tool_timeout_s`.
        """
        return await self.commands.run(command, timeout_s)


def without(key: str, output: str) -> str:
    """Return the output with the key replaced by KEY, even if line breaks split the key."""
    return re.sub(r"\s*".join(map(re.escape, key)), "KEY", output)
