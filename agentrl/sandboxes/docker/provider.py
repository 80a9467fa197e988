"""Starts containers in which the program of `agentrl.sandboxes.inside` runs, and removes them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from secrets import token_hex

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxEndedError, SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.docker.client import OWN_FAILURE, PULL_S, Client, end
from agentrl.sandboxes.docker.owner import LABEL, orphans
from agentrl.sandboxes.docker.probe import probe
from agentrl.sandboxes.docker.settings import ContainerSandbox
from agentrl.sandboxes.isolation import check_isolation
from agentrl.sandboxes.process import WRITABLE, ProcessSandbox, arguments

START_S = 120.0
EXIT_S = 5.0
"""Seconds to wait until the command that started a container exits, with the exit code of the container."""
_LOGGER = logging.getLogger(__name__)
_LIST = ("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Labels}}", "--filter")
_REMOVE = ("rm", "--force", "--volumes")


class ContainerProvider:
    """See `SandboxProvider`."""

    def __init__(self, settings: ContainerSandbox) -> None:
        self._settings = settings
        self._client = Client(settings)
        self._left: set[str] = set()
        self._images: dict[str, asyncio.Task[None]] = {}

    async def check(self) -> None:
        """See `SandboxProvider.check`. Also removes containers that killed runs left behind."""
        self._client.check_installed()
        try:
            await self._remove_orphans()
            await self._get_image()
            await self._try_out()
        except (SandboxUnavailableError, SandboxEndedError) as error:
            raise ConfigError.keyless(f"{error} (docs/sandboxes.md)") from error

    async def start(self, setup: SandboxSetup | None = None) -> ContainerProcess:
        """See `SandboxProvider.start`. The image of a setup is built or pulled once."""
        if setup is not None:
            await self._image_of(setup)
        name = f"agentrl-{token_hex(12)}"
        # the number of files is limited only for folders in memory; with a setup, no folder is in memory
        writable = WRITABLE if setup is None else ()
        process = await self._client.start(name, arguments(self._settings.limits(), writable), setup)
        sandbox = ContainerProcess(process, self._client, name, self._left)
        await sandbox.wait_until_ready(START_S)
        return sandbox

    async def close(self) -> None:
        """See `SandboxProvider.close`."""
        with suppress(SandboxUnavailableError):  # the next run removes these containers
            await self._remove([*self._left])

    async def _image_of(self, setup: SandboxSetup) -> None:
        if setup.image is None:
            return
        if setup.image not in self._images:
            self._images[setup.image] = asyncio.ensure_future(self._make_image(setup.image, setup))
        try:
            await asyncio.shield(self._images[setup.image])
        except SandboxUnavailableError:
            self._images.pop(setup.image, None)  # the next start tries again
            raise

    async def _make_image(self, image: str, setup: SandboxSetup) -> None:
        if (await self._client.run("image", "inspect", image)).exit_code == 0:
            return
        if setup.build is None:
            await self._client.succeed("pull", "--quiet", image, seconds=setup.build_s)
            return
        _LOGGER.warning("building the image %s from %s with %s", image, setup.build, self._client.name)
        await self._client.succeed("build", "--quiet", "--tag", image, str(setup.build), seconds=setup.build_s)

    async def _try_out(self) -> None:
        sandbox = await self.start()
        try:
            await check_isolation(sandbox, probe(self._settings), self._client.name)
        finally:
            await sandbox.kill()

    async def _remove_orphans(self) -> None:
        listed = await self._client.succeed(*_LIST, f"label={LABEL}")
        if found := [*orphans(listed.splitlines())]:
            _LOGGER.warning("removing %d containers of runs that were killed", len(found))
            await self._remove(found)

    async def _remove(self, containers: list[str]) -> None:
        if containers:
            await self._client.run(*_REMOVE, *containers)

    async def _get_image(self) -> None:
        image = self._settings.image
        if (await self._client.run("image", "inspect", image)).exit_code != 0:
            _LOGGER.warning("pulling the image %s with %s", image, self._client.name)
            await self._client.succeed("pull", "--quiet", image, seconds=PULL_S)


class ContainerProcess(ProcessSandbox):
    """See `Sandbox`. The process is the command that started the container, and has the container's streams.

    Args:
        left: names of containers that could not be removed.
    """

    def __init__(self, process: asyncio.subprocess.Process, client: Client, name: str, left: set[str]) -> None:
        super().__init__(process)
        self._client, self._name, self._left = client, name, left
        self._removing: asyncio.Task[bool] | None = None

    async def kill(self) -> None:
        """See `Sandbox.kill`. A container that cannot be removed now is removed by `ContainerProvider.close`."""
        await self._removed()

    async def _removed(self) -> bool:
        if self._removing is None:
            self._removing = asyncio.ensure_future(self._remove())
        return await asyncio.shield(self._removing)

    async def _remove(self) -> bool:
        self._left.add(self._name)
        self.kill_process()
        with suppress(SandboxUnavailableError):
            finished = await self._client.run(*_REMOVE, self._name)
            if finished.exit_code == 0 or "no such container" in finished.error.lower():
                self._left.discard(self._name)
        await end(self._process)
        return self._name not in self._left

    async def _end(self, reason: str) -> SandboxEndedError | SandboxUnavailableError:
        """See `ProcessSandbox._end`. If the container cannot be removed, the daemon failed, not the code."""
        code, said = None, "it does not answer"
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                code = await self._process.wait()
            said = await self.standard_error()
        if not await self._removed() or code == OWN_FAILURE:
            return SandboxUnavailableError(f"{self._client.name} failed while a sandbox ran: {said}")
        return SandboxEndedError(reason if code is None else f"{reason} with exit code {code}{_memory(code)}")


def _memory(code: int) -> str:
    return " (killed, for example at its memory limit)" if code == 137 else ""
