"""Steps of a task: each is a folder `steps/NAME` with its own instruction, tests and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from agentrl.data.task_folders.settings import StepPart

STEPS, WORKDIR, SETUP = "steps", "workdir", "workdir/setup.sh"
_INVALID = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)
_MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a task.

    Attributes:
        path: absolute path of the step's folder.
        instruction: the text of the step's task.
    """

    path: Path
    instruction: str
    settings: StepPart

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.settings.name


def read_steps(
    folder: Path, steps: Sequence[StepPart], read: Callable[[str], str], has_test: Callable[[str], bool]
) -> Iterator[Step | str]:
    """Yield the steps of a task folder, and a line of text for each problem.

    Args:
        read: returns the text of a file in the folder; records the reason if the file cannot be read.
        has_test: whether a folder of tests contains a test script.
    """
    known = set[str]()
    for step in steps:
        key = normalize("NFC", step.name).casefold()
        if not _is_name(step.name):
            yield f"'steps': '{step.name[:100]}' is not a portable folder name"
        elif key in known:
            yield f"'steps': the name '{step.name}' occurs twice"
        else:
            known.add(key)
            yield from _step(folder, step, read, has_test)


def _step(
    folder: Path, step: StepPart, read: Callable[[str], str], has_test: Callable[[str], bool]
) -> Iterator[Step | str]:
    place = f"{STEPS}/{step.name}"
    if (folder / STEPS).is_symlink() or (folder / place).is_symlink():
        yield f"'steps': '{place}' is a link"
        return
    if not (step.verifier.is_separate or has_test(f"{place}/tests") or has_test("tests")):
        yield f"'steps': no file '{place}/tests/test.sh' or 'tests/test.sh'"
    yield Step(folder / place, read(f"{place}/instruction.md"), step)


def _is_name(name: str) -> bool:
    """Whether every operating system accepts this folder name, as Harbor requires."""
    return not (
        not name.strip()
        or name in (".", "..")
        or name.endswith((".", " "))
        or _INVALID.search(name)
        or _DEVICE.fullmatch(name.partition(".")[0].rstrip(" "))
        or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES
    )
