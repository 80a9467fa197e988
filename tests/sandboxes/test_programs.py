"""Programs in processes of their own, in every kind of sandbox that runs here."""

from __future__ import annotations

import asyncio

import pytest
from fake_containers import FakeDaemon
from local_sandboxes import require_bubblewrap
from sandbox_fusion_server import sandbox_fusion

from agentrl.sandboxes import programs
from agentrl.sandboxes.base import SandboxEndedError
from agentrl.sandboxes.loading import pool_of
from agentrl.sandboxes.programs import ProgramRun, run_program


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.slow), "sandbox_fusion"])
def setting(request, tmp_path, monkeypatch):
    require_bubblewrap()
    monkeypatch.setenv("PATH", FakeDaemon(tmp_path / "daemon").path)
    with sandbox_fusion() as (url, _):
        monkeypatch.setenv("SANDBOX_FUSION_ENDPOINT", url)
        yield request.param


def results(setting, *jobs, seconds=20.0):
    """Run (program, standard input) one after another in one sandbox; an error counts as a result."""

    async def main():
        pool = pool_of(setting)
        found = []
        async with pool.borrowed() as owned:
            for code, stdin in jobs:
                try:
                    async with owned as sandbox:
                        found.append(await run_program(sandbox, code, stdin, seconds))
                except SandboxEndedError as error:
                    found.append(error)
        await pool.close()
        return found

    return asyncio.run(main())


@pytest.mark.slow
def test_programs_read_standard_input_and_write_standard_output(setting):
    assert results(
        setting,
        ("print(2 * int(input()))", "21\n"),
        ("import sys; print(__name__); print('unseen', file=sys.stderr)", ""),
        ("raise SystemExit(3)", ""),
        ("open('kept', 'w').write('x')", ""),
        ("import os; print(os.path.exists('kept'), 'KNOWN' in globals())", ""),
    ) == [
        ProgramRun(True, True, "42\n"),
        ProgramRun(True, True, "__main__\n"),
        ProgramRun(False, True, ""),
        ProgramRun(True, True, ""),
        ProgramRun(True, True, "False False\n"),
    ]


@pytest.mark.slow
def test_long_output_is_returned(setting):
    assert results(setting, ("print('x' * 100_000)", "")) == [ProgramRun(True, True, "x" * 100_000 + "\n")]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import time, signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)",
    ],
)
def test_a_program_is_stopped_at_its_deadline(setting, code):
    stopped, after = results(setting, (code, ""), ("print('next')", ""), seconds=0.5)
    assert not stopped.ok
    assert after == ProgramRun(True, True, "next\n")


ISOLATING = ["local", pytest.param("docker", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ISOLATING, indirect=True)
def test_endless_output_is_none(setting):
    endless, after = results(setting, ("while True: print('x' * 1000)", ""), ("print('next')", ""))
    assert endless == ProgramRun(False, True, "")
    assert after.stdout == "next\n"


@pytest.mark.parametrize("setting", ISOLATING, indirect=True)
def test_no_program_runs_beside_another(setting):
    left = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(0.01)\nprint('left')"
    count = (
        "import os\n"
        "lines = [open(f'/proc/{n}/cmdline').read() for n in os.listdir('/proc') if n.isdigit()]\n"
        "print(sum('solution.py' in line for line in lines))"
    )
    assert [run.stdout for run in results(setting, (left, ""), (count, ""))] == ["left\n", "1\n"]


@pytest.mark.parametrize("setting", ISOLATING, indirect=True)
def test_a_program_cannot_read_the_process_that_runs_it(setting):
    code = """
import os
for process in [name for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()]:
    for path in ('mem', 'fd/0', 'environ'):
        try:
            open(f'/proc/{process}/{path}', 'rb')
            print('READ', process, path, open(f'/proc/{process}/cmdline').read()[:40])
        except OSError: pass
"""
    (run,) = results(setting, (code, "the secret"))
    first = [line for line in run.stdout.splitlines() if not line.startswith("READ 1 ")]  # bubblewrap's own process
    assert first == []


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("setting", ISOLATING, indirect=True)
@pytest.mark.parametrize(
    "code",
    [
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
    ],
)
def test_a_program_that_attacks_its_sandbox_does_not_end_well(setting, code):
    attack, after = results(setting, (code, ""), ("print('next')", ""), seconds=2.0)
    assert isinstance(attack, SandboxEndedError) or not attack.ok
    assert isinstance(after, SandboxEndedError) or after == ProgramRun(True, True, "next\n")


@pytest.mark.slow
def test_a_fork_bomb_does_not_end_well():
    require_bubblewrap()  # only local sandboxes: the container of the stand-in has no limit of processes
    attack, _ = results("local", ("import os\nwhile True: os.fork()", ""), ("print('next')", ""), seconds=2.0)
    assert isinstance(attack, SandboxEndedError) or not attack.ok


def test_a_false_reply_ends_the_sandbox(monkeypatch):
    require_bubblewrap()
    monkeypatch.setattr(programs, "_driver", lambda: "def own_processes(): pass\ndef reply(job, known): return '[1]'")
    (found,) = results("local", ("1", ""))
    assert isinstance(found, SandboxEndedError)
