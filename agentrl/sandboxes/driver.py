"""Runs a program in a separate process. The interpreter of a sandbox executes this module's text (`programs.py`).

Before and after each run, every process that a program left running is killed, so no process can watch another program.
"""

# no pathlib or contextlib, because each import takes time at each run; this code must also work with Python 3.9
# ruff: noqa: PTH102, PTH118, PTH123, PTH208, SIM105
from __future__ import annotations

import base64
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any  # Any: JSON of the job and of the reply

PR_SET_DUMPABLE = 4
MAX_PASSES = 200
FOLDER = "case"
OUTPUT = "case/output"


def own_processes() -> set[int]:
    """Return the running processes of this user."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/status") as file:
                    lines = dict(line.split(":", 1) for line in file if ":" in line)
            except OSError:  # the process has ended
                continue
            if lines["State"].split()[0] not in "ZX" and int(lines["Uid"].split()[0]) == os.getuid():
                found.add(int(name))
    return found


def end_others(known: set[int]) -> bool:
    """Kill the processes of this user that are not in `known`; return whether no such process is left."""
    for _ in range(MAX_PASSES):
        others = own_processes() - known
        if not others:
            return True
        for process in others:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.002)
    return False


def run_alone(job: dict[str, Any], known: set[int]) -> dict[str, Any]:
    """Run a program; return its exit code and the start of its output. The complete output is in the file `OUTPUT`.

    Args:
        known: processes that existed before the first program.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that the program cannot read this process's job
    if not end_others(known):
        return {"alone": False}
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.mkdir(FOLDER, 0o700)
    with open(os.path.join(FOLDER, "solution.py"), "wb") as file:
        file.write(base64.b64decode(job["program"]))
    with open(OUTPUT, "w+b") as output:
        code = run_process(base64.b64decode(job["stdin"]), job["seconds"], output)
        alone = end_others(known)
        output.seek(0)
        text = base64.b64encode(output.read(job["inline"])).decode()
        size = os.fstat(output.fileno()).st_size
    return {"alone": alone, "exit_code": code, "size": size, "text": text}


def run_process(stdin: bytes, seconds: float, output: Any) -> int | None:
    """Run the program; return its exit code, or None if it had to be killed."""
    process = subprocess.Popen(
        [sys.executable, "-s", "solution.py"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.DEVNULL,
        cwd=FOLDER,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    try:
        process.communicate(stdin, timeout=seconds)
        return process.returncode
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def reply(job: dict[str, Any], known: set[int]) -> str:
    """Return the reply as a line of JSON."""
    try:
        return json.dumps(run_alone(job, known))
    except OSError as error:  # the limit on processes or disk space is reached
        return json.dumps({"alone": True, "exit_code": None, "size": 0, "text": "", "why": str(error)})
