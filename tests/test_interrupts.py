"""Signals in processes of their own: asked once, asked twice, asked too long ago."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys, time
from agentrl import interrupts
from agentrl.cli.main import finish

def command():
    with interrupts.last_words(lambda: "go on from step 3"):
        asyncio.run(work())

async def work():
    os.kill(os.getpid(), signal.{first})
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)
        {rest}

interrupts.GRACE_S = {grace_s}
signal.signal(signal.SIGINT, signal.{handler})
sys.exit(finish(command))
"""


def ended(first: str, rest: str = "pass", grace_s: float = 30, handler: str = "default_int_handler"):
    program = PROGRAM.format(first=first, rest=rest, grace_s=grace_s, handler=handler)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_the_first_asks(first):
    done = ended(first)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "agentrl: interrupted\n")


@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_the_second_ends_at_once(second):
    done = ended("SIGINT", f"time.sleep(0.5); os.kill(os.getpid(), signal.{second}); time.sleep(60)")
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert done.stderr.endswith("agentrl: go on from step 3\nagentrl: interrupted, ended at once\n")


def test_what_takes_too_long_is_ended_too():
    done = ended("SIGTERM", "time.sleep(60)", grace_s=0.2)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "agentrl: interrupted, ended at once")


def test_a_background_job_that_ignores_ctrl_c_ends_when_it_is_told_to():
    done = ended("SIGTERM", handler="SIG_IGN")
    assert done.returncode == 130
    assert done.stderr == "agentrl: interrupted\n"
