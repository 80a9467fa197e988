"""Several ranks for tests: the test's own process is rank 0, others run beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from serve_ranks import serve_ranks
from torch import Tensor

from agentrl.backends.fsdp.ranks import STORE, Ranks, join, joined
from agentrl.registry import child_path

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
"""Number of ranks that tests share."""
DEVICE = os.environ.get("DEVICE_OF_TESTS", "cpu")
"""Device of the models: cpu, or cuda with one GPU per rank."""
ROUNDING = 2e-6 if DEVICE == "cpu" else 1e-5
"""Largest relative difference of gradients in float32; on a GPU the same sums have other orders."""
SERVE = Path(__file__).with_name("serve_ranks.py")


def on_cpu(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((name, value.cpu()) for name, value in weights)


def run_again(
    file: str, num_ranks: str, *others: str, marks: str = "megatron and not slow", device: str = "cpu"
) -> None:
    """Run the tests of files with these marks on another number of ranks, or on another device."""
    if device == "cuda" and torch.cuda.device_count() < int(num_ranks):
        pytest.skip(f"needs {num_ranks} GPUs, one per rank")
    brief = ("-q", "--tb=short", "--show-capture=no")
    selected = f"{marks} and not gpu"
    command = [sys.executable, "-m", "pytest", *brief, "-m", selected, file, *others]
    changes = {"RANKS_OF_TESTS": num_ranks, "DEVICE_OF_TESTS": device}
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@contextmanager
def ranks_of(size: int, folder: Path) -> Iterator[Ranks]:
    """Join `size` ranks; at the end all other processes must have ended by themselves."""
    common = {"WORLD_SIZE": str(size), STORE: str(folder / "store"), "PYTHONPATH": child_path()}
    torch.set_num_threads(1)  # as in the other ranks: sums depend on the number of threads
    others = start_others({**common, "OMP_NUM_THREADS": "1", "RANK": "1"}) if size > 1 else None
    try:
        with patch.dict(os.environ, {**common, "RANK": "0"}):
            ranks = join()
        yield ranks
        ranks.close()
        assert joined() is None
        assert others is None or exit_status(others, 60.0) == 0
    finally:
        if others is not None:
            with suppress(ProcessLookupError):
                os.killpg(others, signal.SIGKILL)
            exit_status(others, 60.0)


def start_others(changes: dict[str, str]) -> int:
    """Returns the id of the process of the other ranks, which leads a group of processes.

    It is a fork without other threads in this process: the imports have happened.
    """
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        command = [sys.executable, str(SERVE)]
        return os.posix_spawn(sys.executable, command, {**os.environ, **changes}, setpgroup=0)
    if not (fork := os.fork()):
        status = 1
        try:
            os.setpgid(0, 0)
            os.environ.update(changes)
            status = serve_ranks()
        finally:
            os._exit(status)
    with suppress(OSError):  # the fork may have done so, and may have ended
        os.setpgid(fork, fork)
    return fork


def exit_status(process: int, seconds: float) -> int | None:
    """The status of a child that ends in time; None if it has been read before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            ended, status = os.waitpid(process, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    raise TimeoutError(f"process {process} runs for {seconds:.0f} seconds")
