"""A process on another node. An actor on that node starts it, reads its output and sends it signals."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from agentrl.cluster.actors import own_address
from agentrl.utils.network import free_port, interface_of

READ_BYTES = 2**16
PIECES = 100
"""Maximum number of pieces of output that one call of `NodeProcess.output` returns."""
DRAIN_S = 2.0
"""Seconds to wait for the rest of the output when the process has ended."""


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a process since the last call of `NodeProcess.output`.

    Attributes:
        pieces: (1 for stdout or 2 for stderr, bytes), in order.
        status: exit status, -N if signal N ended the process; None until all output has been read.
    """

    pieces: list[tuple[int, bytes]]
    status: int | None


class NodeProcess:
    """Runs one Python module at a time on the node of this object.

    As a Ray actor, this object needs two threads, because `output` blocks one of them.
    """

    def __init__(self) -> None:
        self._pieces: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []

    def place(self) -> tuple[str, int]:
        """Return the address of this node, and a free port on it."""
        address = own_address()
        return address, free_port(address)

    def start(self, module: Sequence[str], file: bytes, folder: str, environment: Mapping[str, str]) -> None:
        """Start `python -m module PATH` in `folder`, where PATH is a new file with the content `file`.

        Raises:
            FileNotFoundError: `folder` does not exist on this node.
        """
        descriptor, path = tempfile.mkstemp(prefix="agentrl-config-")  # the file is readable only by this user
        with os.fdopen(descriptor, "wb") as kept:
            kept.write(file)
        own = {"GLOO_SOCKET_IFNAME": interface} if (interface := interface_of(own_address())) else {}
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", *module, path],
            cwd=folder,
            env={**os.environ, **own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for number, pipe in ((1, process.stdout), (2, process.stderr)):
            assert pipe
            thread = threading.Thread(target=self._read, args=(number, pipe), daemon=True)
            thread.start()
            self._readers.append(thread)

    def output(self, wait_s: float = 1.0) -> Output:
        """Wait up to `wait_s` seconds for output and return it; when all output was read, return the exit status."""
        pieces: list[tuple[int, bytes]] = []
        try:
            pieces.append(self._pieces.get(timeout=wait_s))
            while len(pieces) < PIECES:
                pieces.append(self._pieces.get_nowait())
        except queue.Empty:
            pass
        return Output(pieces, None if pieces else self._status())

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs. SIGKILL is sent to the whole process group."""
        if self._process is None or self._process.poll() is not None:
            return
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def _status(self) -> int | None:
        if self._process is None or (status := self._process.poll()) is None:
            return None
        for reader in self._readers:
            reader.join(DRAIN_S)  # with a timeout, because a child of the process may keep the pipe open
        return status if self._pieces.empty() else None

    def _read(self, number: int, pipe: IO[bytes]) -> None:
        while piece := os.read(pipe.fileno(), READ_BYTES):
            self._pieces.put((number, piece))
