"""Task folders as the rows of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.data.rows.base import Row
from agentrl.data.task_folders.find import find_task_folders
from agentrl.data.task_folders.folder import TaskFolder, TaskFolderError, read_task_folder
from agentrl.errors import DataError

DATA_SOURCE = "task_folder"
FOLDER_KEY = "task_folder"
"""Key of `extra_info` with the path of the task folder."""


class TaskFolderRows:
    """One row per task folder. All folders are read once, when the rows are opened.

    Raises:
        DataError: there are no task folders, or some are not valid; the message lists all problems, one per line.
    """

    source: str | None = DATA_SOURCE

    def __init__(self, name: str) -> None:
        paths = find_task_folders(name)
        if not paths:
            raise DataError(f"{name}: no task folders: a task folder has task.toml, instruction.md and environment/")
        self._tasks = _read(paths)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, row: int) -> Row:
        task = self._tasks[row]
        return {
            "prompt": task.instruction,
            "data_source": DATA_SOURCE,
            "extra_info": {FOLDER_KEY: str(task.path), "task_name": task.name},
        }

    def scan(self, num_rows: int) -> Iterator[Row]:
        """Yield the first `num_rows` rows."""
        return (self[row] for row in range(num_rows))

    def where(self, row: int) -> str:
        """Return the path of the row's task folder."""
        return str(self._tasks[row].path)


def _read(paths: list[Path]) -> list[TaskFolder]:
    tasks, problems = list[TaskFolder](), list[str]()
    for path in paths:
        try:
            tasks.append(read_task_folder(path))
        except TaskFolderError as error:
            problems += error.problems
    if problems:
        raise DataError("\n".join(problems))
    return tasks
