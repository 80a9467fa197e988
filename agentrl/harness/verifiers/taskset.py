"""A taskset of verifiers as a harness: verifiers drives the conversation, and uses the model through the gateway."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import JsonValue

from agentrl.errors import ConfigError, DataError
from agentrl.harness.worker_process import WorkerProcess, variables_of
from agentrl.tools.base import InfraError
from agentrl.types.task import Task
from agentrl.utils.atomic_files import atomic_file

BRIDGE = Path(__file__).with_name("bridge.py")
COLUMN = "verifiers_task"
"""Column of a row that contains the task of the taskset."""
AGENT: Mapping[str, JsonValue] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""Configuration of verifiers' agent: it has no tools of its own, and runs on this machine."""
_KEPT = ("UV_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
"""Prefixes of the environment variables that verifiers inherits, because uv needs them to download packages."""


class Endpoint(Protocol):
    """Address and name of the model."""

    @property
    def base_url(self) -> str:
        """Address of the gateway; the address contains the key of the rollout."""
        ...

    @property
    def model(self) -> str:
        """Name of the model."""
        ...


class Taskset:
    """A taskset that is installed in a separate Python environment.

    Args:
        python: the interpreter of the environment with verifiers.
        taskset: id of the taskset, or its configuration.
        agent: configuration of verifiers' agent.
        env: further environment variables for verifiers.
        start_timeout_s: timeout in seconds for the start of verifiers.
    """

    def __init__(
        self,
        python: str | Path,
        taskset: str | Mapping[str, JsonValue],
        agent: Mapping[str, JsonValue] = AGENT,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        own = {"id": taskset} if isinstance(taskset, str) else dict(taskset)
        self._python, self._config = Path(python).expanduser(), json.dumps({"taskset": own, "agent": dict(agent)})
        self._variables = {**variables_of(self._python, _KEPT), **(env or {})}
        self._bridge = WorkerProcess("verifiers", self._command("serve"), self._variables, start_timeout_s)

    async def run(self, task: Task, endpoint: Endpoint) -> float:
        """Run one rollout; return its reward. The harness calls this method as its `function`.

        Raises:
            DataError: the row was not written by `write_rows`.
            InfraError: verifiers does not start, has ended, or returns no reward for the rollout.
        """
        data = task.extra_info.get(COLUMN)
        if not isinstance(data, dict):
            raise DataError(f"row {task.index}: no column '{COLUMN}': make rows with Taskset.write_rows")
        answer = await self._bridge.ask({"base_url": endpoint.base_url, "model": endpoint.model, "task": data})
        reward = answer.get("reward")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise InfraError(f"row {task.index}: verifiers returned no reward: {answer.get('error')}"[:2000])
        return float(reward)

    def write_rows(self, path: str | Path) -> None:
        """Write the tasks of the taskset as rows of a JSONL file for `data.train_files`.

        Raises:
            ConfigError: verifiers cannot load the taskset.
        """
        try:
            done = subprocess.run(
                self._command("rows"), env=self._variables, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise ConfigError.keyless(f"'{self._python}' cannot be started: {error.strerror}") from error
        if done.returncode:
            reason = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ConfigError.keyless(f"verifiers cannot load the taskset: {reason[-1]}")
        with atomic_file(Path(path)) as file:
            file.write(done.stdout.encode())

    def close(self) -> None:
        """End the process of verifiers. Without this call, the process of verifiers ends when this process ends."""
        self._bridge.close()

    def _command(self, mode: str) -> list[str]:
        return [str(self._python), str(BRIDGE), mode, self._config]
