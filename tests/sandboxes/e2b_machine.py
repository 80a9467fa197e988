"""A sandbox of the E2B test server: a folder, interpreters and commands, all real processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

HOME = "/home/user"
KERNEL = Path(__file__).with_name("e2b_kernel.py")
LIMIT = 2**26


class BrokenOffError(Exception):
    """Breaks a connection off."""


class Kernel:
    """An interpreter, which is started again when it ends, as Jupyter does."""

    def __init__(self, folder: Path) -> None:
        self.id = str(uuid4())
        self.folder = folder
        self.using = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None
        self.closed = False

    async def start(self) -> None:
        reading, writing = os.pipe()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(KERNEL), str(writing)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self.folder,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        self.events = asyncio.StreamReader(limit=LIMIT)
        self.pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.events), os.fdopen(reading, "rb")
        )

    async def execute(self, code: str) -> AsyncIterator[dict]:
        """Yield the events of one execution; interrupt it if nobody reads them any more."""
        async with self.using:
            if self.closed:
                raise BrokenOffError
            if self.process is None or self.process.returncode is not None:
                await self.start()
            number = uuid4().hex
            self.process.stdin.write(json.dumps({"id": number, "code": code}).encode() + b"\n")
            try:
                async for event in self._events(number):
                    yield event
            except (asyncio.CancelledError, GeneratorExit):
                with suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGINT)
                raise

    async def _events(self, number: str) -> AsyncIterator[dict]:
        while line := await self.events.readline():
            event = json.loads(line)
            if event.pop("of") != number:  # of an execution that was interrupted
                continue
            if event["type"] == "idle":
                return
            yield event
        await self.process.wait()
        yield {"type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": ""}

    async def close(self) -> None:
        self.closed = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
            self.pipe.close()


class Machine:
    """One sandbox."""

    def __init__(self, folder: Path, request: dict, internet: bool) -> None:
        self.id = f"i{uuid4().hex[:19]}"
        self.metadata = {str(name): str(value) for name, value in request.get("metadata", {}).items()}
        self.template, self.timeout, self.internet = request["templateID"], request.get("timeout"), internet
        self.started = datetime.now(UTC)
        self.folder = folder / self.id
        self.folder.mkdir(parents=True)
        self.kernels: dict[str, Kernel] = {}
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.dead = asyncio.Event()
        self.starting: set[asyncio.Task] = set()

    def created(self) -> dict:
        return {
            "templateID": self.template,
            "sandboxID": self.id,
            "clientID": "client",
            "envdVersion": "0.5.2",
            "envdAccessToken": f"token-{self.id}",
            "domain": None,
        }

    def listed(self) -> dict:
        shown = datetime.isoformat(self.started)
        more = {"startedAt": shown, "endAt": shown, "cpuCount": 2, "memoryMB": 2048, "diskSizeMB": 1024}
        described = {key: value for key, value in self.created().items() if key not in ("envdAccessToken", "domain")}
        return {**described, **more, "state": "running", "metadata": self.metadata}

    def path(self, path: str) -> Path:
        """Return the place of a path of the sandbox on this machine."""
        if path == HOME or path.startswith(f"{HOME}/"):
            path = path.removeprefix(HOME).lstrip("/") or "."
        return self.folder / path

    async def fetched(self, path: str) -> Path:
        """Return a file of this machine with the content of a path."""
        return self.path(path)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with its folders."""
        place = self.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)

    async def new_kernel(self) -> Kernel:
        kernel = Kernel(self.folder)
        self.kernels[kernel.id] = kernel
        await self._started(kernel.start())
        return kernel

    async def command(self, arguments: list[str], **options: Any) -> asyncio.subprocess.Process:
        """Start a command. A request that is cancelled meanwhile leaves a process that `end` finds."""
        return await self._started(self._command(arguments, **options))

    async def _started(self, start: Coroutine) -> Any:
        if self.dead.is_set():
            start.close()
            raise BrokenOffError
        task = asyncio.ensure_future(start)
        self.starting.add(task)
        task.add_done_callback(self.starting.discard)
        return await asyncio.shield(task)

    async def _command(
        self, arguments: list[str], env: dict[str, str] | None = None, cwd: str = HOME, stdin: int | None = None
    ) -> asyncio.subprocess.Process:
        """Start a command, whose user may be any: that of the tests."""
        own = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "TMPDIR": str(self.folder.parent)}
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.path(cwd),
            env={**own, **(env or {})},
            start_new_session=True,
        )
        self.processes[process.pid] = process
        return process

    async def end(self) -> None:
        """End everything in it."""
        self.dead.set()
        while self.starting:
            await asyncio.wait(self.starting)
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            process._transport.close()  # else its pipes stay open while another process has them
        for kernel in self.kernels.values():
            await kernel.close()
        shutil.rmtree(self.folder, ignore_errors=True)
