"""Task folders for tests."""

from __future__ import annotations

from pathlib import Path

SEVEN = '[ "$(cat /app/n.txt)" = 7 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'
"""Tests of the task to write 7 to /app/n.txt."""


NUMBER = "cat n.txt > /logs/verifier/reward.txt\n"
"""Tests of a step whose reward is the number in n.txt."""


def make_folder(
    folder: Path,
    *,
    instruction: str | None = "Write 7 to /app/n.txt",
    settings: str | None = "",
    test: str | None = SEVEN,
    dockerfile: str | None = None,
    **files: str | bytes,
) -> Path:
    """Write a task folder.

    Args:
        files: further files of the environment by name; `__` is a slash.
    """
    texts = {
        "instruction.md": instruction,
        "task.toml": settings,
        "tests/test.sh": test,
        "environment/Dockerfile": dockerfile,
        **{f"environment/{name.replace('__', '/')}": content for name, content in files.items()},
    }
    (folder / "environment").mkdir(parents=True, exist_ok=True)
    for name, content in texts.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def make_steps(folder: Path, *names: str, settings: str = "", options: str = "", **files: str) -> Path:
    """Write a task folder with steps, whose rewards are the number in /app/n.txt.

    Args:
        options: lines of each step in task.toml.
        files: further files of the folder by name; `__` is a slash.
    """
    steps = "".join(f'[[steps]]\nname = "{name}"\n{options}' for name in names)
    texts = {f"steps/{name}/instruction.md": f"Do {name}." for name in names}
    texts |= {name.replace("__", "/"): text for name, text in files.items()}
    dockerfile = "FROM debian\nWORKDIR /app\n"
    make_folder(folder, instruction=None, settings=settings + steps, test=NUMBER, dockerfile=dockerfile)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
