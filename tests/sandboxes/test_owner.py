from __future__ import annotations

import os
import subprocess
import sys

from agentrl.sandboxes.owner import has_ended, own_name, place

CODE = "from agentrl.sandboxes.owner import own_name; print(own_name(), flush=True); input()"


def test_a_process_has_ended_when_it_was_killed():
    process = subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    name = process.stdout.readline().strip()
    assert not has_ended(name)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie, whose number is still taken
    assert has_ended(name)
    process.communicate()
    assert has_ended(name)


def test_another_process_with_the_same_number_is_not_the_owner():
    assert not has_ended(own_name())
    process, started = own_name().split("-")[1:]
    assert has_ended(f"{place()}-{process}-{int(started) - 1}")


def test_processes_of_other_places_are_unknown():
    for name in ("", "nonsense", "f" * 32 + "x1-1-1", f"{place()}-1"):
        assert not has_ended(name)
