"""What all harnesses of a run share: settings, gateway and places."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError, Kind
from agentrl.gateway.server import Address, Gateway
from agentrl.harness.function import Run, load_function
from agentrl.harness.instruction import Instruction, instruction_of
from agentrl.harness.placeholders import Values, shows_system
from agentrl.harness.places import PORT, Place, needs_socket, open_place
from agentrl.harness.process import HarnessProcess, Job
from agentrl.harness.settings import KEY, Harness, HarnessSettings, read_harness
from agentrl.harness.slots import Slots, WatchedSession
from agentrl.types.task import Task

_LOGGER = logging.getLogger(__name__)
_MAX_VARIABLE_CHARS = 30_000
"""Longest instruction in an environment variable; the system limits each to 128 KiB."""


class HarnessRun:
    """Everything that the rollouts of one run share. The gateway starts with the first rollout."""

    def __init__(self, harness: Harness, gateway: Gateway) -> None:
        self.harness, self._gateway = harness, gateway
        self.settings: HarnessSettings = harness.settings
        self.function: Run | None = load_function(harness) if harness.settings.function else None
        self.slots = Slots(self.settings.max_running, self.settings.max_starting)
        self._shows_system = any(map(shows_system, self.settings.texts()))
        self._cwd = Path.cwd()
        self._logged = False

    @classmethod
    def of(cls, config: RunConfig) -> HarnessRun:
        """Read the settings of a run.

        Raises:
            ConfigError, UnknownNameError: the settings are wrong.
        """
        if config.rollout.harness is None:
            raise ConfigError.at(KEY, Kind.MISSING, f"`rollout.agent.default_agent_loop=harness` needs `{KEY}`")
        return cls(read_harness(config.rollout.harness), Gateway(config.rollout.gateway))

    def check(self, task: Task) -> None:
        """Check that the harness can get a task.

        Raises:
            DataError: it cannot.
        """
        instruction = instruction_of(task)
        values = self._values(instruction, task, Address("http://127.0.0.1/v1", ""), "", "")
        for text in self.settings.texts():
            values.fill(text)

    @asynccontextmanager
    async def address(self, session: WatchedSession) -> AsyncIterator[Address]:
        """Open the session at the gateway for the time of the block."""
        address = await self._gateway.open(session, unix=needs_socket(self.harness))
        try:
            yield address
        finally:
            self._gateway.close_session(address.key)

    @asynccontextmanager
    async def started(self, instruction: Instruction, task: Task, address: Address) -> AsyncIterator[HarnessProcess]:
        """Start the command; at the end of the block, everything of it is gone.

        Raises:
            InfraError: it cannot be started.
        """
        workdir = self.settings.workdir
        values = self._values(instruction, task, address, "", "")
        template = values.fill(workdir) if workdir else None
        if template and not await asyncio.to_thread(_is_folder, template):
            raise DataError(f"row {task.index}: 'workdir' of the harness: there is no folder '{template}'")
        socket = self._gateway.socket if needs_socket(self.harness) else None
        place = await asyncio.to_thread(open_place, self.harness, socket, template)
        try:
            process = await HarnessProcess.start(place, self._job(place, instruction, task, address))
            try:
                yield process
            finally:
                await process.close()
        finally:
            await asyncio.to_thread(place.remove)

    def log_once(self, problem: str) -> None:
        """Log the first failure of a harness."""
        if not self._logged:
            self._logged = True
            _LOGGER.warning("%s (reported once)", problem)

    async def close(self) -> None:
        """End the gateway."""
        await self._gateway.close()

    def _job(self, place: Place, instruction: Instruction, task: Task, address: Address) -> Job:
        settings, inside = self.settings, address
        if place.socket:  # the supervisor listens in the place
            inside = Address(urlsplit(address.base_url)._replace(netloc=f"127.0.0.1:{PORT}").geturl(), address.key)
        values = self._values(instruction, task, inside, place.home, place.workdir)
        own = {"PATH": place.path, "HOME": place.home, "LANG": "C.UTF-8", **_variables(values)}
        return Job(
            [values.fill(each) for each in settings.command],
            {**own, **{name: values.fill(each) for name, each in settings.env.items()}},
            {name: values.fill(each) for name, each in settings.files.items()},
            values.fill(settings.stdin),
        )

    def _values(self, instruction: Instruction, task: Task, address: Address, home: str, workdir: str) -> Values:
        user = instruction.user if self._shows_system else instruction.together
        own = address.base_url, address.key, self.settings.model
        folders = home, workdir, str(self.harness.folder), str(self._cwd)
        return Values(*own, user, instruction.system, *folders, task.extra_info)


def _variables(values: Values) -> dict[str, str]:
    """Variables for scripts, such as shell commands in which a placeholder would need quotes."""
    found = {
        "AGENTRL_BASE_URL": values.base_url,
        "AGENTRL_API_KEY": values.key,
        "AGENTRL_MODEL": values.model,
        "AGENTRL_INSTRUCTION": values.instruction,
        "AGENTRL_SYSTEM": values.system,
    }
    return {name: value for name, value in found.items() if len(value) <= _MAX_VARIABLE_CHARS and "\0" not in value}


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()
