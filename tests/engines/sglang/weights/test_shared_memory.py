"""A bucket in shared memory is opened by its name, by another process and more than once."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agentrl.config.rollout import SglangConfig
from agentrl.engines.sglang.weights import shared_memory
from agentrl.engines.sglang.weights.choice import choose_transfer
from agentrl.engines.sglang.weights.shared_memory import FOLDER, Name, allocate, in_shared_memory

OPEN = "import base64, pickle, sys; print(int(pickle.loads(base64.b64decode(sys.argv[1])).sum()))"
FEATURES = SimpleNamespace(device="cpu", dtype="auto", tp_size=1, pp_size=1, dp_size=1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /dev/shm")


def files() -> set[Path]:
    return set(FOLDER.glob("torch_*"))


@pytest.mark.slow
def test_another_process_reads_the_bytes_by_name():
    before = files()
    data = allocate(1000).copy_(torch.arange(1000) % 251)
    names = [base64.b64encode(pickle.dumps(Name(data))).decode() for _ in range(2)]
    assert max(map(len, names)) < 1000
    for name in names:
        done = subprocess.run([sys.executable, "-c", OPEN, name], capture_output=True, text=True)
        assert done.stdout.strip() == str(int(data.sum())), done.stderr
    assert len(files() - before) == 1
    del data
    assert files() == before


def test_without_room_the_bytes_are_in_own_memory(monkeypatch, tmp_path):
    assert in_shared_memory(allocate(10))
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
    assert not in_shared_memory(allocate(10))
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "none")
    assert not in_shared_memory(allocate(1))


def test_only_servers_that_the_run_starts_share_memory(tmp_path):
    for urls, expected in ((), True), (("http://127.0.0.1:1",), False):
        config = SglangConfig(weight_transfer="tensor", urls=urls)
        transfer = choose_transfer(config, {"a": (2,)}, FEATURES, tmp_path)
        assert in_shared_memory(transfer._memory(10)) is expected
