"""The peers that benchmarks compare with, each in its own virtual environment, created on first use."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache/peers"


def peer_python(name: str) -> Path:
    """Return the Python interpreter of the peer's environment, which does not contain agentrl.

    `<name>.txt` in this folder lists the packages to install. The packages of `<name>.alone.txt`, if it exists, are
    then installed without their dependencies.
    """
    installs = [(HERE / f"{name}.txt", []), (HERE / f"{name}.alone.txt", ["--no-deps"])]
    installs = [(requirements, options) for requirements, options in installs if requirements.exists()]
    wanted = "".join(requirements.read_text() for requirements, _ in installs)
    folder = CACHE / name
    made_from, python = folder / "made_from.txt", folder / "bin/python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may create it at the same time
        if not made_from.exists() or made_from.read_text() != wanted:
            print(f"installing {name} into {folder}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            for requirements, options in installs:
                install = [python, "-m", "pip", "install", "--quiet", *options, "--requirement", requirements]
                subprocess.run(install, check=True)
            made_from.write_text(wanted)
    return python
