"""The packages that `make sglang` installs on a machine without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_server import require_sglang

ROOT = Path(__file__).parents[3]
NAMES = ("sgl_kernel", "torchvision")


def pins(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", file.read_text(), re.MULTILINE))


def test_cpu_requirements_equal_tested_versions():
    ours, its = pins(ROOT / "constraints.txt"), pins(ROOT / "tests/sglang_on_cpu/requirements.txt")
    shared = ours.keys() & its.keys()
    assert {"transformers", "tokenizers", "aiohttp"} <= shared
    assert {name: its[name] for name in shared} == {name: ours[name] for name in shared}


@pytest.mark.slow
@pytest.mark.sglang
def test_stand_in_modules_are_importable_only_by_cpu_servers():
    require_sglang()
    code = f"import importlib.util; print([importlib.util.find_spec(name) is not None for name in {NAMES}])"
    environment = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}

    def found(**extra: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment | extra, capture_output=True, text=True, check=True).stdout

    assert found() == "[False, False]\n"
    assert found(SGLANG_USE_CPU_ENGINE="1") == "[True, True]\n"
