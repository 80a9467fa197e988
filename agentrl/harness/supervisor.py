"""Program that starts a harness as its child, and ends all processes that the harness started.

`process.py` and `in_task.py` send the source of this file to the place in which the harness runs (see `places.py`).
There, the place's Python (3.9 or later) runs it.
The first argument is a file descriptor. The supervisor writes to this descriptor: first the text in the job's key
`mark`, then the report.
When a file descriptor in the job's key `watched` closes, agentrl has ended, and the supervisor ends the harness.
"""

# without pathlib and contextlib, because importing them would slow down each start
# ruff: noqa: PTH103, PTH118, PTH120, PTH123, PTH208, SIM105
from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any  # Any: JSON of the job

PR_SET_CHILD_SUBREAPER = 36
PR_SET_DUMPABLE = 4
CHUNK = 2**16
MAX_ROUNDS = 1000
"""Maximum number of attempts to end processes that fork repeatedly."""
PAUSE_S = 0.002
NOT_A_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC)


def main(job: dict[str, Any]) -> None:
    """Run the job, and write the report."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the harness become children of this process
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the harness cannot read this process
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    report = run(job)
    end_descendants()
    if job["folder"]:
        shutil.rmtree(job["folder"], ignore_errors=True)
    os.write(status, (job["mark"] + json.dumps(report)).encode() + b"\n")
    os._exit(0)  # does not wait for threads that still forward bytes


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Prepare the folders, run the command, and return how it ended."""
    try:
        prepare(job)
        server = listen(job["port"]) if job["socket"] else None
    except OSError as error:
        return {"failed": f"{error.strerror}: {error.filename or job['port']}"}
    try:
        process = start(job)
    except OSError as error:
        missing = error.errno in NOT_A_PROGRAM and error.filename == job["command"][0]  # else the workdir is missing
        return {"failed": f"{error.strerror}: {error.filename}", "missing": missing}
    except ValueError as error:  # a null character in an argument
        return {"failed": str(error)}
    if server is not None:
        threading.Thread(target=forward, args=(server, job["socket"]), daemon=True).start()
    if job["stdin"]:
        threading.Thread(target=feed, args=(process, job["stdin"].encode()), daemon=True).start()
    ended = os.pidfd_open(process.pid)
    if ended not in select.select([ended, *job["watched"]], [], [])[0]:
        process.kill()
    process.wait()
    return {"exit_code": process.returncode if process.returncode >= 0 else 128 - process.returncode}


def prepare(job: dict[str, Any]) -> None:
    """Make HOME and the working folder, with their files."""
    os.makedirs(job["home"], exist_ok=True)
    if job["template"]:
        shutil.copytree(job["template"], job["workdir"], symlinks=True, dirs_exist_ok=True)
    os.makedirs(job["workdir"], exist_ok=True)
    for name, text in job["files"].items():
        path = os.path.join(job["home"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def start(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the command."""
    return subprocess.Popen(
        job["command"],
        stdin=subprocess.PIPE if job["stdin"] else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        env={**(os.environ if job["inherits"] else {}), **job["env"]},
        cwd=job["workdir"],
        preexec_fn=lambda: limit(job["limits"]),
    )


def limit(limits: dict[str, int]) -> None:
    """Limit the resources of the harness."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write the standard input of the command."""
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.close()
    except OSError:  # the command does not read its input
        pass


def listen(port: int) -> socket.socket:
    """Open the port at which the harness finds the gateway."""
    return socket.create_server(("127.0.0.1", port), backlog=128)


def forward(server: socket.socket, path: str) -> None:
    """Connect each client to the gateway's socket."""
    while True:
        client, _ = server.accept()
        threading.Thread(target=join, args=(client, path), daemon=True).start()


def join(client: socket.socket, path: str) -> None:
    """Forward bytes in both directions, until both ends have closed."""
    gateway = socket.socket(socket.AF_UNIX)
    try:
        gateway.connect(path)
        back = threading.Thread(target=copy, args=(gateway, client), daemon=True)
        back.start()
        copy(client, gateway)
        back.join()
    except OSError:  # the gateway is closed: close the connection too
        pass
    client.close()
    gateway.close()


def copy(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until the source ends."""
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end has closed
        pass


def end_descendants() -> None:
    """Kill all descendants of this process."""
    for _ in range(MAX_ROUNDS):
        left = descendants()
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:  # the process has ended, or belongs to another user
                pass
        time.sleep(PAUSE_S)
        reap()


def reap() -> None:
    """Collect the children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def descendants() -> set[int]:
    """Return the descendants of this process that have not ended."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parents[int(name)] = int(fields[1])
    found, last = {os.getpid()}, 0
    while len(found) > last:
        last = len(found)
        found |= {process for process, parent in parents.items() if parent in found}
    return found - {os.getpid()}
