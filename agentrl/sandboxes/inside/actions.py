"""Runs commands, and reads and writes files, in a sandbox."""

# not pathlib: its import would slow down each start
# ruff: noqa: PTH103, PTH113, PTH120, PTH123, SIM105
from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any  # Any: JSON of the requests

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.interpreter import Output, drain, processes, wait

END_S = 10.0
"""Timeout in seconds for ending processes; until then, running processes are killed again and again."""


def answer(request: dict[str, Any], most: int, stop: tuple[int, ...] = ()) -> dict[str, Any]:
    """Answer a request that needs no interpreter.

    Args:
        stop: file descriptors; the command is ended as soon as one of them is readable.
    """
    if request["kind"] == "command":
        return command(request["text"], request["seconds"], most, stop)
    if request["kind"] == "write":
        return write(request["path"], request["data"])
    return read(request["path"], request["most"])


def command(text: str, seconds: float, most: int, stop: tuple[int, ...] = ()) -> dict[str, Any]:
    """Run a shell command.

    If the command ends by itself, processes that it leaves running continue. At a timeout or stop, the process group of
    the command is killed.
    """
    output, timed_out, stopped = Output(most), False, False
    process = subprocess.Popen(
        ["bash", "-c", text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    source, end = process.stdout.fileno(), time.monotonic() + seconds
    os.set_blocking(source, False)
    ended = os.pidfd_open(process.pid)
    watched = [ended, source, *stop]
    while not stopped:
        left = end - time.monotonic()
        if left <= 0:
            timed_out = True
            break
        ready = wait(watched, left)
        if source in ready and not drain(source, output):
            watched = [ended, *stop]
        if ended in ready:
            break
        stopped = any(descriptor in ready for descriptor in stop)
    try:
        if timed_out or stopped:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    os.close(ended)
    drain(process.stdout.fileno(), output)
    process.stdout.close()
    return {"output": output.text(), "exit_code": process.returncode, "timed_out": timed_out}


def end_processes() -> int:
    """Kill all other processes of the sandbox; return how many are left."""
    end = time.monotonic() + END_S
    while (left := [each for each in processes() if runs(each)]) and time.monotonic() < end:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.001)
    return len(left)


def runs(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def write(path: str, data: str) -> dict[str, Any]:
    """Write a file."""
    try:
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
    except OSError as error:
        return {"failed": f"{error.strerror}: {path}"}
    return {}


def read(path: str, most: int) -> dict[str, Any]:
    """Read a file of at most `most` bytes."""
    try:
        if not os.path.isfile(path):  # a pipe or device would block
            return {"failed": f"no such file: {path}"}
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        return {"failed": f"{error.strerror}: {path}"}
    if len(data) > most:
        return {"failed": f"the file has more than {most} bytes: {path}"}
    return {"data": base64.b64encode(data).decode()}
