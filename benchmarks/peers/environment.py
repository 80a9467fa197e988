"""Creates the virtual environments of the peers on first use. A peer is a package used in comparisons or tests."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache/peers"


def peer_python(name: str) -> Path:
    """Return the Python interpreter of the peer's environment, which does not contain agentrl.

    `<name>.txt` in this folder lists the packages to install. If the current environment has one of them in a version
    that fits, the peer's environment uses that copy, and the package (above all torch) is not installed again. If
    `<name>.alone.txt` exists, its packages are installed after that, without their dependencies. If `<name>.python.txt`
    exists, it names the Python that creates the peer's environment. Such an environment uses no package of the current
    environment.
    """
    own_python = HERE / f"{name}.python.txt"
    installs = [(HERE / f"{name}.txt", []), (HERE / f"{name}.alone.txt", ["--no-deps"])]
    installs = [(requirements, options) for requirements, options in installs if requirements.exists()]
    wanted = "".join(requirements.read_text() for requirements, _ in installs)
    folder = CACHE / name
    made_from, python = folder / "made_from.txt", folder / "bin/python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may need the same environment at the same time
        if not made_from.exists() or made_from.read_text() != wanted:
            print(f"installing {name} into {folder}", file=sys.stderr)
            creator, version = sys.executable, {}
            if own_python.exists():
                creator = own_python.read_text().strip()
                version = {"PYENV_VERSION": creator.removeprefix("python")}  # if pyenv manages this Python, select it
            subprocess.run([creator, "-m", "venv", "--clear", folder], check=True, env={**os.environ, **version})
            if not own_python.exists():
                own_packages = sysconfig.get_path("purelib", vars={"base": str(folder)})
                Path(own_packages, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
            for requirements, options in installs:
                install([python, "-m", "pip", "install", "--quiet", *options, "--requirement", requirements])
            made_from.write_text(wanted)
    return python


def install(command: list[str | Path]) -> None:
    """Run pip. Print its error output only if it fails.

    Even if pip succeeds, its error output says that shared packages need other versions.
    """
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
    done.check_returncode()
