"""One task folder: its instruction, its settings, and the paths of its files."""

from __future__ import annotations

import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from agentrl.data.task_folders.settings import TaskSettings
from agentrl.data.task_folders.steps import Step, read_steps

SETTINGS, INSTRUCTION, TEST = "task.toml", "instruction.md", "tests/test.sh"
ENVIRONMENT, TESTS, SOLUTION = "environment", "tests", "solution"
TERMINAL_BENCH = "task.yaml"
MAX_TEXT_BYTES = 2**20
"""Maximum size of a task.toml, an instruction or a Dockerfile."""
_CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)


class TaskFolderError(Exception):
    """A folder that is not a valid task. `problems` lists all errors, each with file and key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task and the files of its folder.

    Attributes:
        path: absolute path of the folder.
        instruction: the text of the task, without leading "canary" lines, which mark benchmark data. For a task with
            steps, the instruction of the first step.
        steps: steps of the task; empty for most tasks.
    """

    path: Path
    instruction: str
    settings: TaskSettings
    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        """The name in the table `[task]` of task.toml; without this table, the name of the folder."""
        return self.settings.task.name if self.settings.task else self.path.name

    @property
    def dockerfile(self) -> Path:
        """Path of the Dockerfile; the file may be missing."""
        return self.path / ENVIRONMENT / "Dockerfile"


def read_task_folder(path: Path) -> TaskFolder:
    """Read a task folder.

    Raises:
        TaskFolderError: the folder is not a valid task.
    """
    path = path.expanduser().absolute()
    problems: list[str] = []
    settings = _settings(path, problems)
    if (path / TERMINAL_BENCH).is_file() and not (path / SETTINGS).exists():
        raise TaskFolderError(
            [f"{path}: a task of Terminal-Bench; convert it: harbor task migrate --input {path} --output NEW_FOLDER"]
        )
    if not (path / ENVIRONMENT).is_dir() or (path / ENVIRONMENT).is_symlink():
        problems.append(f"{path}: no folder '{ENVIRONMENT}'")
    steps = _steps(path, settings, problems)
    instruction = "" if settings and settings.steps else _single_step(path, settings, problems)
    if problems or settings is None:
        raise TaskFolderError(problems)
    return TaskFolder(path, steps[0].instruction if steps else instruction, settings, steps)


def _single_step(path: Path, settings: TaskSettings | None, problems: list[str]) -> str:
    """Return the instruction of a task without steps."""
    windows = settings is not None and settings.environment.os != "linux"
    test = "tests/test.bat" if windows else TEST
    if not (settings and settings.verifier.is_separate) and not _is_file(path, test):
        problems.append(f"{path}: no file '{test}'")
    return without_canary(_text(path, INSTRUCTION, problems))


def _steps(path: Path, settings: TaskSettings | None, problems: list[str]) -> tuple[Step, ...]:
    if settings is None or not settings.steps:
        return ()
    script = "test.sh" if settings.environment.os == "linux" else "test.bat"

    def has_test(folder: str) -> bool:
        return settings.verifier.is_separate or _is_file(path, f"{folder}/{script}")

    found = [*read_steps(path, settings.steps, lambda name: without_canary(_text(path, name, problems)), has_test)]
    problems += [f"{path / SETTINGS}: {each}" for each in found if isinstance(each, str)]
    return tuple(each for each in found if isinstance(each, Step))


def without_canary(text: str) -> str:
    """Remove leading comment lines that contain the word canary, and then all leading empty lines."""
    lines = text.split("\n")
    while lines and _CANARY.match(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most `MAX_TEXT_BYTES`.

    Raises:
        ValueError: the path is no regular file, or the file is too large or not UTF-8; the message contains the reason.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if found.st_size > MAX_TEXT_BYTES:
            raise ValueError(f"larger than {MAX_TEXT_BYTES} bytes")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ValueError("does not exist") from None
    except OSError as error:
        raise ValueError(str(error.strerror)) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None


def _text(folder: Path, name: str, problems: list[str]) -> str:
    try:
        return read_text(folder / name)
    except ValueError as error:
        problems.append(f"{folder / name}: {error}")
        return ""


def _settings(folder: Path, problems: list[str]) -> TaskSettings | None:
    num_before = len(problems)
    text = _text(folder, SETTINGS, problems)
    if len(problems) > num_before:
        return None
    where = folder / SETTINGS
    try:
        return TaskSettings.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{where}: not TOML: {error}")
    except ValidationError as error:
        lines = {f"{where}: '{'.'.join(map(str, each['loc']))}': {each['msg']}": None for each in error.errors()}
        problems += lines
    return None


def _is_file(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()
