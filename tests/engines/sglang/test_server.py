"""Servers as child processes: start, early death, restart and cleanup.

The fast tests start a fake server that answers /health at once; the slow tests start the real server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang_server import START_S, new_server

from agentrl.engines.sglang.client import ServerError
from agentrl.engines.sglang.servers import server as server_module
from agentrl.engines.sglang.servers.server import LocalServer
from agentrl.errors import ConfigError

GONE_S = 120.0
STAND_IN = """
import ctypes, http.server, subprocess, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args): ...

# as SGLang's own children do, its child dies with it
subprocess.Popen(["sleep", "1000"], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9))
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
DIES = "print('[2026-11-21 10:00:00] loading'); raise ValueError('no such model')"
HANGS = "import time; time.sleep(1000)"


def stand_in(monkeypatch, tmp_path: Path, code: str = STAND_IN) -> LocalServer:
    def command(options: object, port: int, host: str) -> list[str]:
        return [sys.executable, "-c", code, str(port)]

    monkeypatch.setattr(server_module, "server_command", command)
    return LocalServer({}, tmp_path / "logs/replica-0.log")


def group_of(leader: int) -> list[int]:
    """Processes of the group, without zombies."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            members.append(int(stat.parent.name))
    return members


def wait_until_gone(leader: int) -> None:
    end = time.monotonic() + GONE_S
    while group_of(leader):
        assert time.monotonic() < end, f"still there: {group_of(leader)}"
        time.sleep(0.05)


def test_unwritable_log_is_a_one_line_error(monkeypatch, tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(ServerError, match=r"^cannot write the log of an SGLang server, .*replica-0.log: "):
        stand_in(monkeypatch, tmp_path).start()


@contextmanager
def trainer_that_runs(code: str) -> Iterator[subprocess.Popen[str]]:
    """The test kills this trainer in the end; its servers must end too."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            yield trainer
        finally:
            trainer.kill()


@pytest.mark.slow
def test_a_server_is_started_restarted_at_the_same_address_and_stopped_with_all_its_processes(monkeypatch, tmp_path):
    server = stand_in(monkeypatch, tmp_path)

    async def life() -> None:
        assert not server.alive
        server.start()
        await server.ready(20)
        assert server.alive
        first = server.pid
        assert len(group_of(first)) == 3
        assert os.getsid(first) != os.getsid(0)  # Ctrl-C in the terminal does not reach the server
        await server.restart(20)
        assert group_of(first) == []
        second = server.pid
        await server.stop()
        assert group_of(second) == []
        assert not server.alive
        await server.stop()
        with pytest.raises(ServerError, match="not started"):
            server.pid  # noqa: B018

    asyncio.run(life())
    assert server.log_file.read_text() == "serving\nserving\n"


@pytest.mark.slow
def test_server_that_dies_at_start_reports_reason_and_log_file(monkeypatch, tmp_path):
    server = stand_in(monkeypatch, tmp_path, DIES)
    server.start()
    with pytest.raises(ServerError, match=r"ended with status 1: ValueError: no such model; .*replica-0\.log"):
        asyncio.run(server.ready(20))
    assert not server.alive


@pytest.mark.slow
def test_a_server_that_does_not_serve_in_time_is_stopped(monkeypatch, tmp_path):
    server = stand_in(monkeypatch, tmp_path, HANGS)
    server.start()
    leader = server.pid
    with pytest.raises(ServerError, match=r"did not start within 0\.5 s .*start_timeout_s.*replica-0\.log"):
        asyncio.run(server.ready(0.5))
    assert group_of(leader) == []


@pytest.mark.slow
def test_a_server_that_hangs_is_restarted(monkeypatch, tmp_path):
    server = stand_in(monkeypatch, tmp_path)

    async def life() -> None:
        server.start()
        await server.ready(20)
        first = server.pid
        os.killpg(first, signal.SIGSTOP)
        assert server.alive
        await server.restart(20)
        assert group_of(first) == []
        await server.stop()

    asyncio.run(life())


@pytest.mark.slow
def test_death_of_only_the_server_is_detected(monkeypatch, tmp_path):
    server = stand_in(monkeypatch, tmp_path)

    async def life() -> None:
        server.start()
        await server.ready(20)
        for member in set(group_of(server.pid)) - {server.pid}:
            os.kill(member, signal.SIGKILL)
        async with asyncio.timeout(GONE_S):
            while server.alive:  # noqa: ASYNC110  (a process sets no event)
                await asyncio.sleep(0.05)
        assert not server.alive
        await server.stop()

    asyncio.run(life())


@pytest.mark.slow
def test_server_ends_with_a_killed_trainer_or_watcher(tmp_path):
    """The trainer starts the server in a thread; the end of that thread must not end the server."""
    code = f"""
import asyncio, sys, threading, time
from pathlib import Path
from agentrl.engines.sglang.servers import server as module
module.server_command = lambda options, port, host: [sys.executable, "-c", {STAND_IN!r}, str(port)]
servers = [module.LocalServer({{}}, Path({str(tmp_path)!r}, name)) for name in "ab"]
for server in servers:
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
for server in servers:
    asyncio.run(server.ready(20))
print(*[server.pid for server in servers], flush=True)
time.sleep(1000)
"""
    with trainer_that_runs(code) as trainer:
        first, second = map(int, trainer.stdout.readline().split())
        assert (len(group_of(first)), len(group_of(second))) == (3, 3)
        os.kill(first, signal.SIGKILL)
        wait_until_gone(first)
        trainer.kill()
        wait_until_gone(second)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.sglang
def test_real_server_ends_with_a_killed_trainer(sglang_model, tmp_path):
    code = f"""
import sys, time
from pathlib import Path
sys.path[:0] = {sys.path!r}
from sglang_server import new_server
server = new_server(Path({str(sglang_model)!r}), Path({str(tmp_path)!r}, "log"))
server.start()
print(server.pid, flush=True)
time.sleep(1000)
"""
    with trainer_that_runs(code) as trainer:
        leader = int(trainer.stdout.readline())
        end = time.monotonic() + START_S
        while len(members := group_of(leader)) < 4:
            assert time.monotonic() < end, members
            time.sleep(0.2)
        trainer.kill()
        wait_until_gone(leader)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mem_fraction_statik": 0.5}, ConfigError, "no option 'mem_fraction_statik'; did you mean 'mem_fraction_stat"),
        ({"tokenizer_worker_num": 0}, ServerError, r"ended with status 1: AssertionError: .*server\.log"),
    ],
)
def test_options_that_the_real_server_refuses_at_start(sglang_model, tmp_path, options, error, message):
    server = new_server(sglang_model, tmp_path / "server.log", sglang={"server_args": options})
    server.start()
    with pytest.raises(error, match=message):
        asyncio.run(server.ready(START_S))
    assert not server.alive
