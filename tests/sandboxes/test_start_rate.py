from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes.start_rate import StartRate


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def waits(rate: StartRate, number: int) -> list[float]:
    """Seconds, rounded to tens: a process takes seconds to start on a busy machine."""
    return [round(rate.reserve(), -1) for _ in range(number)]


def test_starts_are_spaced_evenly_over_all_processes_of_a_service(folder):
    assert waits(StartRate("e2b", 0.01), 2) == [0, 100]
    code = "from agentrl.sandboxes.start_rate import StartRate; print(round(StartRate('e2b', 0.01).reserve(), -1))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"TMPDIR": str(folder), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert other.stdout == "200.0\n"
    assert waits(StartRate("e2b", 0.01), 1) == [300]
    assert waits(StartRate("another", 0.01), 1) == [0]


def test_a_start_waits_for_its_turn():
    slept = []

    async def sleep(seconds):
        slept.append(round(seconds))

    async def run():
        for _ in range(3):
            await StartRate("e2b", 0.1, sleep).wait()

    asyncio.run(run())
    assert slept == [10, 20]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, b"\x00\x00\x00\x00\x00\x00\xf0\x7f"])
def test_a_file_with_nonsense_does_not_stop_starts(folder, content):
    assert waits(StartRate("e2b", 0.01), 1) == [0]
    (file,) = folder.glob("*/*")
    file.write_bytes(content)
    assert waits(StartRate("e2b", 0.01), 2) == [0, 100]


def test_a_folder_that_others_can_write_is_refused(folder):
    assert waits(StartRate("e2b", 0.01), 1) == [0]
    (own,) = folder.iterdir()
    own.chmod(0o777)
    with pytest.raises(ConfigError, match="only this user can write"):
        StartRate("e2b", 0.01).reserve()
    own.rename(folder / "elsewhere")
    own.symlink_to(folder / "elsewhere")
    with pytest.raises(ConfigError, match="only this user can write"):
        StartRate("e2b", 0.01).reserve()
