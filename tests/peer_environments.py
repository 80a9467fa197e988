"""Packages of other projects in virtual environments of their own, and their servers (`make environment-servers`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from agentrl.utils.network import free_port

ROOT = Path(__file__).parents[1]
START_S = 300.0


def peer_python(name: str) -> Path:
    """The interpreter of `.venv/peers/NAME`. Without it, the test fails under CI, and is left out elsewhere."""
    for folder in (Path(sys.prefix), ROOT / ".venv"):
        if (folder / "peers" / name / "ready").exists():
            return folder / "peers" / name / "bin/python"
    skip = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    return skip(f"{name} is not installed: make environment-servers")


@contextmanager
def running_server(command: list[object], path: str, cwd: Path, **environment: str) -> Iterator[str]:
    """The address of a server; PORT in the command is its port. It has started when `path` answers 200."""
    port = free_port()
    words = [str(port) if word == "PORT" else str(word) for word in command]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    log = cwd / "server.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, cwd=cwd, env={**variables, **environment}, stdout=file, stderr=file, start_new_session=True
        )
        try:
            wait_for(process, port, path, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)  # the process is starting
        finally:
            connection.close()
    raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
