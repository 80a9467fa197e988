"""Several ranks for tests: the test's own process is rank 0, others run beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from agentrl.backends.fsdp.ranks import STORE, Ranks, join, joined
from agentrl.registry import child_path

NUM_RANKS = int(os.environ.get("RANKS_OF_TESTS", "2"))
"""Number of ranks that tests share."""
DEVICE = os.environ.get("DEVICE_OF_TESTS", "cpu")
"""Device of the models: cpu, or cuda with one GPU per rank."""
ROUNDING = 2e-6 if DEVICE == "cpu" else 1e-5
"""Largest relative difference of gradients in float32; on a GPU the same sums have other orders."""
SERVE = "import sys, torch; torch.set_num_threads(1); from agentrl.backends.fsdp.ranks import serve; sys.exit(serve())"


def on_cpu(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    return ((name, value.cpu()) for name, value in weights)


def run_again(file: str, num_ranks: str, *others: str, marks: str = "megatron", device: str = "cpu") -> None:
    """Run the fast tests of files with these marks on another number of ranks, or on another device."""
    if device == "cuda" and torch.cuda.device_count() < int(num_ranks):
        pytest.skip(f"needs {num_ranks} GPUs, one per rank")
    brief = ("-q", "--tb=short", "--show-capture=no")
    command = [sys.executable, "-m", "pytest", *brief, "-m", f"{marks} and not slow and not weekly and not gpu", file, *others]
    changes = {"RANKS_OF_TESTS": num_ranks, "DEVICE_OF_TESTS": device}
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@contextmanager
def ranks_of(size: int, folder: Path) -> Iterator[Ranks]:
    """Join `size` ranks; at the end all other processes must have ended by themselves."""
    common = {"WORLD_SIZE": str(size), STORE: str(folder / "store"), "PYTHONPATH": child_path()}
    environment = {**os.environ, **common, "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)  # as in the other ranks: sums depend on the number of threads
    others = [
        subprocess.Popen([sys.executable, "-c", SERVE], env={**environment, "RANK": str(rank)})
        for rank in range(1, size)
    ]
    try:
        with patch.dict(os.environ, {**common, "RANK": "0"}):
            ranks = join()
        yield ranks
        ranks.close()
        assert joined() is None
        assert [process.wait(60) for process in others] == [0] * (size - 1)
    finally:
        for process in others:
            process.kill()
            process.wait()
