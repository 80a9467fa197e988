"""Local sandboxes: bubblewrap starts the program of `agentrl.sandboxes.inside` in new namespaces."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from secrets import token_hex

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxEndedError, SandboxFileError, SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.isolation import check_isolation
from agentrl.sandboxes.local.bubblewrap import command, python_of, user_of, writable_folders
from agentrl.sandboxes.local.overlay import Root
from agentrl.sandboxes.local.probe import probe
from agentrl.sandboxes.local.seccomp import filter_descriptor
from agentrl.sandboxes.local.settings import LocalSandbox
from agentrl.sandboxes.process import LINE_BYTES, ProcessSandbox, arguments

START_S = 30.0
_EXIT_S = 2.0
"""Seconds to wait for the exit of bubblewrap's process after its sandbox has ended."""


class LocalProvider:
    """See `SandboxProvider`."""

    def __init__(self, settings: LocalSandbox) -> None:
        self._settings = settings

    async def check(self) -> None:
        """See `SandboxProvider.check`: a sandbox is started and tries forbidden actions."""
        root = self._settings.opened_root()
        try:
            sandbox = await self.start()
        except SandboxUnavailableError as error:
            raise ConfigError.keyless(f"{error} (docs/sandboxes.md)") from error
        try:
            await check_isolation(sandbox, probe(self._settings), "local", read_only=root is None)
            if root is not None:
                await _check_layer(sandbox, root)
        finally:
            await sandbox.kill()

    async def start(self, setup: SandboxSetup | None = None) -> LocalSandboxProcess:
        """See `SandboxProvider.start`."""
        return await LocalSandboxProcess.start(self._settings, setup or SandboxSetup())

    async def close(self) -> None:
        """See `SandboxProvider.close`. Nothing to do: the sandboxes end when this process ends."""


_REPLACE = """
import os, shutil
for name in ("/opt", "/srv", "/var", "/etc"):
    shutil.rmtree(name, ignore_errors=True)
    if not os.path.lexists(name):
        os.mkdir(name)
"""
"""Removes folders of the root and creates them again; folders that contain a `readonly` folder are kept."""


async def _check_layer(sandbox: LocalSandboxProcess, root: Root) -> None:
    """Check that a sandbox can change its root, and that the folder on this machine stays unchanged.

    Raises:
        ConfigError: the check failed.
    """
    name = f"usr/agentrl-{token_hex(8)}"
    try:
        await sandbox.upload(f"/{name}", b"")
    except SandboxFileError as error:
        raise ConfigError.keyless(f"`root` of the sandbox: {root.path}: it cannot be written: {error}") from error
    if said := (await sandbox.run_python(_REPLACE, START_S)).error:
        raise ConfigError.keyless(
            f"`root` of the sandbox: a sandbox cannot recreate a removed folder; this needs Linux 6.6 or later:"
            f" {said.splitlines()[-1]}"
        )
    if root.has(name):
        raise ConfigError.keyless(f"`root` of the sandbox: {root.path}: changes in a sandbox also change the folder")


class LocalSandboxProcess(ProcessSandbox):
    """See `Sandbox`. When bubblewrap ends, so do all processes in its namespace."""

    @classmethod
    async def start(cls, settings: LocalSandbox, setup: SandboxSetup) -> LocalSandboxProcess:
        """Start bubblewrap, and wait until the program in it is ready."""
        program = [python_of(settings), *arguments(settings.limits(), writable_folders(settings, setup))]
        user, group = user_of(settings) or (None, None)
        seccomp = filter_descriptor()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(settings, seccomp, program, setup=setup),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={},
                pass_fds=(seccomp,),
                start_new_session=True,
                limit=LINE_BYTES,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )
        except OSError as error:
            raise SandboxUnavailableError(f"a sandbox cannot start: {error}") from error
        finally:
            os.close(seccomp)
        sandbox = cls(process)
        await sandbox.wait_until_ready(START_S)
        return sandbox

    async def _end(self, reason: str) -> SandboxEndedError | SandboxUnavailableError:
        """See `ProcessSandbox._end`. If a signal killed bubblewrap, the code did not end the sandbox."""
        if not self._ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S):
                    if (code := await self._process.wait()) < 0:
                        return SandboxUnavailableError(f"this machine ended a sandbox: signal {-code}")
        return await super()._end(reason)
