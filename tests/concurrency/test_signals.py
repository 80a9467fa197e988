"""Signals in separate processes: one signal, two signals, and a second signal long after the first."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys, time
from agentrl.concurrency import signals
from agentrl.cli.main import finish
{before}

def command():
    with signals.on_forced_exit(lambda: "go on from step 3"):
        asyncio.run(work())

async def work():
    os.kill(os.getpid(), signal.{first})
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)
        {rest}

signals.GRACE_S = {grace_s}
signal.signal(signal.SIGINT, signal.{handler})
sys.exit(finish(command))
"""


ENDED = "agentrl: stopping; press Ctrl-C again to stop now\nagentrl: interrupted\n"
AFTERWARDS = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60); sys.exit(status)"
STATUS = {"SIGINT": 130, "SIGTERM": 143}
IN_A_LIBRARY = "import atexit; atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.2)))"


def ended(
    first: str, rest: str = "pass", grace_s: float = 30, handler: str = "default_int_handler", before: str = ""
) -> subprocess.CompletedProcess[str]:
    return run(PROGRAM.format(first=first, rest=rest, grace_s=grace_s, handler=handler, before=before))


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_the_first_signal_requests_a_stop(first):
    done = ended(first)
    assert (done.returncode, done.stdout, done.stderr) == (STATUS[first], "cleaned up\n", ENDED)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_second_signal_ends_the_run_immediately(second):
    done = ended("SIGINT", f"time.sleep(0.5); os.kill(os.getpid(), signal.{second}); time.sleep(60)")
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert done.stderr.endswith("agentrl: go on from step 3\nagentrl: interrupted, ended at once\n")


def test_a_stop_that_takes_too_long_is_forced():
    done = ended("SIGTERM", "time.sleep(60)", grace_s=0.2)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (143, "agentrl: interrupted, ended at once")


def test_background_job_that_ignores_ctrl_c_ends_on_sigterm():
    done = ended("SIGTERM", handler="SIG_IGN")
    assert done.returncode == 143
    assert done.stderr == ENDED


def test_ctrl_c_while_an_interrupted_process_exits_ends_it_at_once():
    done = ended("SIGINT", before=IN_A_LIBRARY.replace("0.2", "60"))
    assert (done.returncode, done.stderr) == (-signal.SIGINT, ENDED)


def test_ctrl_c_right_after_the_last_output_ends_it_at_once():
    text = PROGRAM.format(first="SIGINT", rest="pass", grace_s=30, handler="default_int_handler", before="")
    done = run(text.replace("sys.exit(finish(command))", "status = finish(command)") + AFTERWARDS)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, ENDED)


def test_a_background_job_ignores_ctrl_c_while_it_exits():
    done = ended("SIGTERM", handler="SIG_IGN", before=IN_A_LIBRARY)
    assert (done.returncode, done.stderr) == (143, ENDED)


@pytest.mark.slow
def test_ctrl_c_while_a_finished_process_exits_is_ignored():
    program = f"import os, signal, sys, time\nfrom agentrl.cli.main import finish\n{IN_A_LIBRARY}\n"
    done = run(f"{program}sys.exit(finish(lambda: None))")
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_works_after_a_command_called_from_python():
    program = "import signal\nfrom agentrl.cli.main import finish\nfinish(lambda: None)\nsignal.raise_signal(2)"
    assert "KeyboardInterrupt" in run(program).stderr
