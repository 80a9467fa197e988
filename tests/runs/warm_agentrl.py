"""The command `agentrl` without its imports: each command is a fork of a process that imported the heavy libraries.

    python warm_agentrl.py serve SOCKET           serves until its standard input ends
    python warm_agentrl.py SOCKET train key=...   is `agentrl train key=...`, with this folder, environment and files

A test of the start itself uses `python -m agentrl` instead.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

AGENTRL = (sys.executable, "-m", "agentrl")
FORWARDED = (signal.SIGINT, signal.SIGTERM)
MOST_BYTES = 1 << 17


@contextmanager
def warm_agentrl(environment: Mapping[str, str] | None = None) -> Iterator[list[str]]:
    """The first words of a command line: what runs `agentrl`.

    Args:
        environment: of the imports, for what libraries read while they are imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        serving = [sys.executable, __file__, "serve", address]
        with subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield [sys.executable, __file__, address]
            server.stdin.close()


@cache
def agentrl() -> tuple[str, ...]:
    """The first words of a command line: what runs `agentrl`. It serves until this process ends."""
    serving = ExitStack()
    atexit.register(serving.close)
    return tuple(serving.enter_context(warm_agentrl()))


class Server:
    """Forks a process for every command line that it receives, and answers with the exit status."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen()
        self._events = selectors.DefaultSelector()
        self._events.register(self._listener, selectors.EVENT_READ, self._start)

    def serve(self) -> None:
        self._events.register(sys.stdin.fileno(), selectors.EVENT_READ, lambda: os._exit(0))
        print("ready", flush=True)
        while True:
            for key, _ in self._events.select():
                key.data()

    def _start(self) -> None:
        client, _ = self._listener.accept()
        request, files, *_ = socket.recv_fds(client, MOST_BYTES, 3)
        if not (process := os.fork()):
            run(json.loads(request), files)
        for file in files:
            os.close(file)
        self._watch(client, process)

    def _watch(self, client: socket.socket, process: int) -> None:
        end = os.pidfd_open(process)

        def ended() -> None:
            self._events.unregister(end)
            os.close(end)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if client in self._events.get_map():
                self._events.unregister(client)
                client.send(str(status).encode())
            client.close()

        def signalled() -> None:
            if number := client.recv(16):
                os.kill(process, int(number))
            else:  # the client was killed
                self._events.unregister(client)
                os.killpg(process, signal.SIGKILL)

        self._events.register(client, selectors.EVENT_READ, signalled)
        self._events.register(end, selectors.EVENT_READ, ended)


def run(request: dict[str, object], files: list[int]) -> None:
    """Run the command line in this fork."""
    from forks import become

    from agentrl.cli.main import main

    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(str(request["folder"]))
    sys.path[0] = str(request["folder"])
    become(main, request["words"], request["environment"])  # type: ignore[arg-type]  # JSON


def serve(address: str) -> None:
    from forks import fork_ranks, ready_to_fork

    from agentrl.cli.ranks import run as ranks

    ready_to_fork()
    fork_ranks(ranks.main)
    Server(address).serve()


def ask(address: str, words: list[str]) -> int:
    """Have the server run the command line; return its exit status, negative for a signal."""
    request = {"words": ["agentrl", *words], "folder": str(Path.cwd()), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        for number in FORWARDED:
            signal.signal(number, lambda number, _: server.send(str(number).encode()))
        return int(server.recv(16))


def main(arguments: list[str]) -> int:
    if arguments[0] == "serve":
        serve(arguments[1])
    status = ask(arguments[0], arguments[1:])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
