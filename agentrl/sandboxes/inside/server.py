"""The main program in a sandbox: requests on standard input and replies on standard output, as JSON lines."""

# not pathlib and contextlib: their import would slow down each start
# ruff: noqa: PTH109, SIM105
from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any  # Any: JSON of the requests

if TYPE_CHECKING:
    from agentrl.sandboxes.inside.actions import answer, end_processes
    from agentrl.sandboxes.inside.interpreter import CHUNK, LOOK_S, WRITABLE, Interpreter, send, wait

PR_SET_DUMPABLE = 4


def serve(settings: dict[str, Any]) -> None:
    """Answer requests until standard input ends."""
    hide()
    if os.getpid() == 1:
        become_child()
    limit(settings["limits"])
    WRITABLE.extend(settings["writable"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interpreter: Interpreter | None = None
    most, folder = settings["output"], os.getcwd()
    send(1, {"id": "ready"})
    for line in requests():
        request = json.loads(line)
        if request["kind"] == "stop":  # meant for a command that has already ended
            continue
        enter(folder)
        try:
            if request["kind"] == "python":
                interpreter = interpreter or Interpreter()
                reply = interpreter.run(request["text"], request["seconds"], most, (0,))
                interpreter = None if reply["state_lost"] else interpreter
            elif request["kind"] == "end":
                if interpreter is not None:
                    interpreter.close()
                    interpreter = None
                reply = {"left": end_processes()}
            else:
                reply = answer(request, most, (0,))
        except OSError as error:  # no more processes or files: the model's code used them up
            reply = {"output": "", "error": f"OSError: {error.strerror}", "failed": str(error.strerror)}
        except ValueError as error:  # a null character in a command or path
            reply = {"output": "", "error": f"ValueError: {error}", "failed": str(error)}
        send(1, {"id": request["id"], **reply})


def enter(folder: str) -> None:
    """Change to the path of the working folder again, because code may have replaced the folder at this path."""
    try:
        os.chdir(folder)
    except OSError:
        pass


def hide() -> None:
    """Deny other processes of the same user access to the memory and the open files of this process.

    A child process becomes accessible again when it executes another program.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def become_child() -> None:
    """Fork, and return in the child only. The parent, process 1 of a container, reaps all processes that end."""
    if (child := os.fork()) == 0:
        return
    while os.wait()[0] != child:
        pass
    os._exit(0)


def limit(limits: dict[str, int]) -> None:
    """Limit the resources of this process and its children permanently."""
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))


def requests() -> Iterator[bytes]:
    """Yield the lines of standard input."""
    unread = bytearray()
    while True:
        if wait([0], LOOK_S):
            if not (read := os.read(0, CHUNK)):
                return
            unread += read
            if b"\n" in read:
                *lines, rest = bytes(unread).split(b"\n")
                unread = bytearray(rest)
                yield from lines
