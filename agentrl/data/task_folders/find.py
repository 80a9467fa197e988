"""Finds the task folders that a dataset name refers to: one task, a folder of tasks, or a pattern."""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path

from agentrl.data.task_folders.folder import INSTRUCTION, SETTINGS, TERMINAL_BENCH

_MARKS = (SETTINGS, TERMINAL_BENCH)


def is_task_folders(name: str) -> bool:
    """Whether a dataset name is the path of a folder, or a pattern that matches folders."""
    return bool(_folders(name))


def find_task_folders(name: str) -> list[Path]:
    """Return the task folders, sorted by name; empty if the folders contain no task."""
    found = [path for folder in _folders(name) for path in _tasks_in(folder)]
    return list(dict.fromkeys(found))


def _folders(name: str) -> list[Path]:
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return [path]
    except OSError:  # a name that is too long
        return []
    if not has_magic(name):
        return []
    return [Path(each) for each in sorted(glob(str(path))) if Path(each).is_dir()]  # noqa: PTH207  # absolute patterns


def _tasks_in(folder: Path) -> list[Path]:
    if _is_task(folder):
        return [folder]
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and _is_task(path)]


def _is_task(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (*_MARKS, INSTRUCTION))
