"""SGLang server as a child process: start, wait, stop and restart. If this process ends, the server is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from pydantic import JsonValue

from agentrl.engines.sglang.api_key import keyed, write_key_file
from agentrl.engines.sglang.client import ServerClient, ServerError
from agentrl.engines.sglang.servers import child as launch
from agentrl.engines.sglang.servers.command import LOOPBACK, server_command, server_environment
from agentrl.engines.sglang.servers.log import startup_error
from agentrl.utils.network import free_port

POLL_S = 0.2
KILL_S = 5.0


class LocalServer:
    """Server on this machine; a restart keeps its port.

    The server's processes have a separate process group and terminal session. So Ctrl-C reaches only the trainer, which
    stops the server.

    Args:
        options: options of `python -m sglang.launch_server`, for example from `server_options`.
        log_file: the server's output is appended to this file.
        env: environment variables in addition to those of this process.
        host: IPv4 address of this machine at which the server listens.

    Attributes:
        url: for example http://127.0.0.1:23456.
        api_key: the server's API key; None if the server has none. Other users of the machine cannot read the key.
    """

    def __init__(
        self,
        options: Mapping[str, JsonValue],
        log_file: Path,
        env: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        self.log_file = log_file
        self._host, self._port = host, free_port(host)
        self.url = f"http://{host}:{self._port}"
        self._options, self.api_key = keyed(options)
        self._env = server_environment(options, env or {}, host)
        self._key_file = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def alive(self) -> bool:
        """Whether the server's process exists; True also for a hung process."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the process group, for `os.killpg`.

        Raises:
            ServerError: the server was not started, or was stopped.
        """
        if self._process is None:
            raise ServerError(f"the SGLang server {self.url} is not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process; `ready` waits until the server accepts requests.

        Raises:
            ServerError: the log cannot be written.
            ConfigError: the config file that the server's options name cannot be read.
        """
        assert self._process is None, "it is started"
        self._key_file = write_key_file(self._options, self.api_key)
        command = server_command({**self._options, "config": str(self._key_file)}, self._port, self._host)
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
        """Wait until the server is ready.

        Raises:
            ServerError: the server ended, or was stopped because it was not ready after `timeout_s` seconds.
            ConfigError: SGLang refuses one of the server's options.
        """
        client = ServerClient(self.url, api_key=self.api_key)
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until_it_serves(client)
        except TimeoutError:
            await self.stop(grace_s=0)
            raise ServerError(
                f"the SGLang server {self.url} did not start within {timeout_s:g} s"
                f" (rollout.sglang.start_timeout_s); its output: {self.log_file}"
            ) from None
        except BaseException:  # includes cancellation, after which nothing uses the server
            await self.stop(grace_s=0)
            raise
        finally:
            await client.close()
            self._key_file.unlink(missing_ok=True)  # the server has read the file

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop all processes of the server: SIGTERM first, SIGKILL after `grace_s` seconds. A second call does nothing.

        The default `grace_s` is short: SGLang needs 7 seconds to stop even when idle, but after Ctrl-C the whole run
        has only 10 seconds to stop.
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
        """Kill the server's remaining processes and start it again with its original weights.

        Raises:
            ServerError, ConfigError: see `ready`.
        """
        await self.stop(grace_s=0)
        self.start()
        await self.ready(timeout_s)

    def _open_log(self) -> BinaryIO:
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            # readable by this user only, because SGLang logs its options, and the API key is one of them
            descriptor = os.open(self.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            return os.fdopen(descriptor, "ab")
        except OSError as error:
            raise ServerError(f"cannot write the log of an SGLang server, {self.log_file}: {error.strerror}") from None

    async def _wait_until_it_serves(self, client: ServerClient) -> None:
        while not await _serves(client):
            if self._process is None or (status := self._process.poll()) is not None:
                raise await asyncio.to_thread(startup_error, self.url, status, self.log_file, self._log_start)
            await asyncio.sleep(POLL_S)

    async def _wait_for_end(self, timeout_s: float) -> None:
        """Wait until no process of the group is left: the server's children end last, and hold port and memory."""
        assert self._process is not None
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self._process.poll()  # reap the process: a zombie still counts as a member of the group
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
    """Send a signal to a process group; False if the group has no process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
