"""Files that are complete or do not exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.utils.atomic_files import atomic_file


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with atomic_file(path) as file:
        file.write(b"x")
        assert not path.exists()
    assert path.read_bytes() == b"x"


def test_a_failure_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"before")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.writelines([b"x", None])  # type: ignore[list-item]  # fails after the first
    assert [each.name for each in tmp_path.iterdir()] == ["a.bin"]
    assert path.read_bytes() == b"before"


def test_a_device_is_written_and_not_replaced() -> None:
    master, slave = os.openpty()
    path = Path(os.ttyname(slave))
    with atomic_file(path) as file:
        file.write(b"x")
    assert os.read(master, 1) == b"x"
    assert path.is_char_device()
    os.close(master)
    os.close(slave)
