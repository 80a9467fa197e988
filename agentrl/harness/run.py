"""Objects that all harnesses of a run share: settings, gateway and slots."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, DataError, Kind
from agentrl.gateway.server import Address, GatewayServer, SharedServer
from agentrl.harness import in_task
from agentrl.harness.function import Run, load_function
from agentrl.harness.instruction import Instruction, instruction_of
from agentrl.harness.placeholders import Values, shows_system
from agentrl.harness.places import PORT, needs_socket, open_place
from agentrl.harness.process import HarnessProcess, Job
from agentrl.harness.settings import KEY, Harness, HarnessSettings, read_harness
from agentrl.harness.slots import Slots, WatchedSession
from agentrl.harness.worker import FunctionWorker
from agentrl.tools.task_folders import TaskFolderState, folder_of
from agentrl.types.task import Task

_LOGGER = logging.getLogger(__name__)
_MAX_VARIABLE_CHARS = 30_000
"""Longer values are not passed as AGENTRL_ variables, because Linux limits an environment variable to 128 KiB."""
_MAX_ARGUMENT_BYTES = 131_071
"""Linux limits an argument of a program, or an environment variable, to 128 KiB including the final null byte."""
_WITH_FOLDER = "`sandbox: task` of the harness needs a task folder (docs/harnesses.md#task-folders)"
_WITHOUT_SANDBOX = (
    "a command works on a task folder only with `sandbox: task` in the settings of the harness; or use `function`"
    " (docs/harnesses.md#task-folders)"
)
_NOWHERE = Address("http://127.0.0.1", "")


class HarnessRun:
    """Everything that the rollouts of one run share. The gateway runs while rollouts run."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.settings: HarnessSettings = harness.settings
        self._worker = FunctionWorker(harness) if self.settings.python else None
        self.function: Run | None = self._worker or (load_function(harness) if self.settings.function else None)
        max_starting = self.settings.max_running if self.function else self.settings.max_starting
        self.slots = Slots(self.settings.max_running, max_starting)
        self._server = SharedServer(self._new_server)
        self._folder: Path | None = None
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
        return cls(read_harness(config.rollout.harness))

    def check(self, task: Task) -> None:
        """Check that the task can be passed to the harness.

        Raises:
            DataError: the task cannot be passed. The error text does not name the row.
        """
        values = self._values(instruction_of(task), task, _NOWHERE)
        if self.function is None and (folder_of(task) is not None) != self.settings.in_task:
            raise DataError(_WITH_FOLDER if self.settings.in_task else _WITHOUT_SANDBOX)
        for where, text in self.settings.named_texts():
            filled = values.fill(text)
            if where.startswith(("command", "env.")) and len(filled.encode()) > _MAX_ARGUMENT_BYTES:
                raise DataError(
                    f"field 'prompt': '{where}' of the harness has {len(filled.encode()):,} bytes, at most"
                    f" {_MAX_ARGUMENT_BYTES:,} can be given to a program: use 'stdin' or 'files'"
                )

    @asynccontextmanager
    async def address(self, session: WatchedSession) -> AsyncIterator[Address]:
        """Open the session at the gateway during the block, and yield the session's address."""
        async with self._server.address(session) as address:
            yield address

    @asynccontextmanager
    async def started(
        self, instruction: Instruction, task: Task, address: Address, folder: TaskFolderState | None
    ) -> AsyncIterator[HarnessProcess | in_task.TaskHarness]:
        """Start the command; at the end of the block, end the command.

        With `sandbox: task`, the sandbox is kept for the tests. Otherwise, the folders of the command are removed.

        Raises:
            DataError: the row's working folder does not exist.
            InfraError: the command cannot be started.
            SandboxEndedError: a program in the sandbox of the task ended the sandbox.
            SandboxUnavailableError: the sandbox of the task failed.
        """
        if folder is not None and self._socket is not None and self.settings.in_task:
            own = {"HOME": in_task.HOME}
            job = self._job((in_task.HOME, folder.workdir), in_task.PORT, own, instruction, task, address)
            async with in_task.started_in_task(folder, self._socket, {**job.values(), "inherits": True}) as harness:
                yield harness
            return
        template = await self._template(instruction, task)
        place = await asyncio.to_thread(open_place, self.harness, self._socket, template)
        try:
            own, port = {"PATH": place.path, "HOME": place.home, "LANG": "C.UTF-8"}, PORT if place.socket else None
            job = self._job((place.home, place.workdir), port, own, instruction, task, address)
            process = await HarnessProcess.start(place, job)
            try:
                yield process
            finally:
                await process.close()
        finally:
            await asyncio.to_thread(place.remove)

    def log_once(self, problem: str) -> None:
        """Log the problem of a harness; only the first problem of a run is logged."""
        if not self._logged:
            self._logged = True
            _LOGGER.warning("%s (reported once)", problem)

    async def close(self) -> None:
        """End the worker, and remove the folder of the gateway's socket."""
        if self._worker is not None:
            await self._worker.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _socket(self) -> Path | None:
        """Path of the gateway's socket, for places that do not share the network of this machine."""
        if not needs_socket(self.harness):
            return None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="agentrl-gateway-"))
            self._folder.chmod(0o711)  # lets sandboxes that run as another user connect; requests need a key
        return self._folder / "socket"

    def _new_server(self) -> GatewayServer:
        return GatewayServer(socket_path=self._socket)

    async def _template(self, instruction: Instruction, task: Task) -> str | None:
        if not self.settings.workdir:
            return None
        template = self._values(instruction, task, _NOWHERE).fill(self.settings.workdir)
        if not await asyncio.to_thread(Path(template).is_dir):
            raise DataError(f"row {task.index}: 'workdir' of the harness: there is no folder '{template}'")
        return template

    def _job(
        self,
        folders: tuple[str, str],
        port: int | None,
        own: Mapping[str, str],
        instruction: Instruction,
        task: Task,
        address: Address,
    ) -> Job:
        """Return the job to run in a place.

        Args:
            folders: HOME and the working folder of the harness.
            port: port on 127.0.0.1, inside the place, at which the supervisor forwards requests to the gateway. None:
                the place shares this machine's network.
            own: environment variables of the place, such as PATH and HOME.
        """
        if port is not None:
            inside = urlsplit(address.base_url)._replace(scheme="http", netloc=f"127.0.0.1:{port}").geturl()
            address = replace(address, base_url=inside)
        settings, values = self.settings, self._values(instruction, task, address, *folders)
        return Job(
            [values.fill(each) for each in settings.command],
            {**own, **_variables(values), **{name: values.fill(each) for name, each in settings.env.items()}},
            {name: values.fill(each) for name, each in settings.files.items()},
            values.fill(settings.stdin),
        )

    def start_folder(self, folder: TaskFolderState) -> None:
        """Reserve the sandbox of a task folder; with `sandbox: task`, this sandbox can reach the gateway."""
        gateway = self._socket if self.settings.in_task else None
        folder.start_with(() if gateway is None else ((gateway.parent, in_task.SOCKET_FOLDER),))

    def _values(
        self, instruction: Instruction, task: Task, address: Address, home: str = "", workdir: str = ""
    ) -> Values:
        user = instruction.user if self._shows_system else task.instruction
        own = address.base_url, address.key, self.settings.model
        folders = home, workdir, str(self.harness.folder), str(self._cwd)
        return Values(*own, user, instruction.system, *folders, task.extra_info)


def _variables(values: Values) -> dict[str, str]:
    """Environment variables for scripts, for example for shell commands, in which placeholders would need quotes."""
    found = {
        "AGENTRL_BASE_URL": values.base_url,
        "AGENTRL_API_KEY": values.key,
        "AGENTRL_MODEL": values.model,
        "AGENTRL_INSTRUCTION": values.instruction,
        "AGENTRL_SYSTEM": values.system,
    }
    return {name: value for name, value in found.items() if len(value) <= _MAX_VARIABLE_CHARS and "\0" not in value}
