"""One whole quickstart, for every test that looks at what it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory) -> Path:
    """The folder of a quickstart: outputs/quickstart is in it."""
    folder = tmp_path_factory.mktemp("quickstart")
    subprocess.run([sys.executable, "-m", "agentrl", "quickstart", "--seed", "0"], cwd=folder, check=True)
    return folder
