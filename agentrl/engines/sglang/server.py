"""An SGLang server as a child process: started, waited for, stopped, started again; it never outlives this process."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from pydantic import JsonValue

from agentrl.engines.sglang import launch
from agentrl.engines.sglang.client import ServerClient, ServerError
from agentrl.engines.sglang.launch_command import server_command, server_environment
from agentrl.engines.sglang.server_log import why_it_ended

POLL_S = 0.2
KILL_S = 5.0
_ports: set[int] = set()


class LocalServer:
    """One server on this machine, on a port that it keeps over restarts.

    Its processes are a group and a terminal session of their own: Ctrl-C reaches the trainer alone, which stops it.

    Args:
        options: of `python -m sglang.launch_server`, such as `server_options` gives.
        log_file: everything it writes is appended there.
        env: environment variables beside this process's own.

    Attributes:
        url: such as http://127.0.0.1:23456.
    """

    def __init__(self, options: Mapping[str, JsonValue], log_file: Path, env: Mapping[str, str] | None = None) -> None:
        self.log_file = log_file
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._options = dict(options)
        self._env = server_environment(options, env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def alive(self) -> bool:
        """Whether its process is there; one that hangs is."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the process group, for `os.killpg`.

        Raises:
            ServerError: it was not started, or was stopped.
        """
        if self._process is None:
            raise ServerError(f"the SGLang server {self.url} is not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process; `ready` waits until it serves.

        Raises:
            ServerError: its log cannot be written.
        """
        assert self._process is None, "it is started"
        command = server_command(self._options, self._port)
        with self._open_log() as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", launch.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    async def ready(self, timeout_s: float) -> None:
        """Wait until it serves.

        Raises:
            ServerError: it ended, or serves not within `timeout_s` seconds, and was stopped; names its log.
            ConfigError: it does not take one of its options.
        """
        client = ServerClient(self.url)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_it_serves(client)
        except TimeoutError:
            await self.stop(grace_s=0)
            raise ServerError(
                f"the SGLang server {self.url} does not serve after {timeout_s:g} s"
                f" (rollout.sglang.start_timeout_s); its output: {self.log_file}"
            ) from None
        except BaseException:  # also cancelled: nobody waits for it any more
            await self.stop(grace_s=0)
            raise
        finally:
            await client.close()

    async def stop(self, grace_s: float = 3.0) -> None:
        """End all its processes, after `grace_s` seconds by force: SGLang takes 7 of its own, with nothing left to do,
        and Ctrl-C allows 10 for everything. A second call does nothing.
        """
        if self._process is None:
            return
        if grace_s:
            _signal_group(self._process.pid, signal.SIGTERM)
            await self._wait_for_end(grace_s)
        _signal_group(self._process.pid, signal.SIGKILL)
        await self._wait_for_end(KILL_S)
        self._process = None

    async def restart(self, timeout_s: float) -> None:
        """Kill what is left of it, and start it anew with the weights it began with.

        Raises:
            ServerError, ConfigError: see `ready`.
        """
        await self.stop(grace_s=0)
        self.start()
        await self.ready(timeout_s)

    def _open_log(self) -> BinaryIO:
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            return self.log_file.open("ab")
        except OSError as error:
            raise ServerError(f"cannot write the log of an SGLang server, {self.log_file}: {error.strerror}") from None

    async def _wait_until_it_serves(self, client: ServerClient) -> None:
        while not await _serves(client):
            if self._process is None or (status := self._process.poll()) is not None:
                raise await asyncio.to_thread(why_it_ended, self.url, status, self.log_file, self._log_start)
            await asyncio.sleep(POLL_S)

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Until no process of the group is left: it has children, which end after it and hold its port and memory."""
        assert self._process is not None
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self._process.poll()  # one that ended and was not asked still counts as a member
            if not _signal_group(self._process.pid, 0):
                return
            await asyncio.sleep(0.05)


async def _serves(client: ServerClient) -> bool:
    try:
        await client.get("/health", timeout_s=30)
    except ServerError:
        return False
    return True


def _signal_group(group: int, number: int) -> bool:
    """Whether there was anybody to signal."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """A port nobody listens on, never the same twice, below those that the system gives out to outgoing connections."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port not in _ports and probe.connect_ex(("127.0.0.1", port)):
                _ports.add(port)
                return port
