"""The setup of a documentation reader: a clone, a model in the hub's cache, own files, and a shell.

Code blocks are run as a reader would paste them. The words after the language select where:

    ```sh             in the clone, after the quickstart
    ```sh sglang      the same, where SGLang is installed
    ```sh gpu         needs GPUs: every `agentrl train` is checked with --dry-run
    ```sh model       needs a model that no test has; not run
    ```sh install     creates the environment; not run: `.ci/run` does that
    ```sh server      starts a third-party server; not run
    ```python         is run as a module; if it begins with `# name.py`, it is also saved under that name
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from chat_families import HEADERS

ROOT = Path(__file__).parents[2]
SHIM = Path(__file__).parent / "short_agentrl.py"
HUB_MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct")
SHELL_KINDS = {"", "sglang", "gpu", "install", "server", "model", "harness"}

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(str(ground_truth) in solution_str)

score = compute_score
"""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the words after the language, and its text."""

    language: str
    kind: str
    text: str

    @property
    def file(self) -> str | None:
        """The file name that a block declares in its first line."""
        found = re.match(r"# ([\w/]+\.(?:py|yaml|jsonl))\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> str:
        """The text without comments."""
        return re.sub(r"(^| +)# .*", "", self.text)


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = re.findall(r"^```(\w+) ?(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


def make_clone(folder: Path) -> None:
    """The tracked files, as they are in the working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if not name.startswith("tests/") and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def add_own_files(folder: Path) -> None:
    """Files that pages assume: the reader's rows and reward, and a template modelled on that of Llama 3.1."""
    rows = [
        {"prompt": f"What is {a}+{b}?", "ground_truth": str(a + b), "data_source": "openai/gsm8k"}
        for a in range(3, 10)
        for b in range(3, 10)
    ]
    for name, part in (("train", rows[:32]), ("test", rows[32:40]), ("questions", rows[40:])):
        pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    (folder / "train.json").write_text(json.dumps(rows[:32]))
    shutil.copy2(folder / "questions.parquet", folder / "geo3k.parquet")
    (folder / "data/gsm8k").mkdir(parents=True)  # the output of examples/gsm8k_tool/prepare.py on the hub's dataset
    for name in ("train", "test"):
        shutil.copy2(folder / f"{name}.parquet", folder / f"data/gsm8k/{name}.parquet")
    for name in ("reward.py", "my_reward.py"):
        (folder / name).write_text(REWARD)
    (folder / "llama3_1.jinja").write_text(HEADERS)


def add_hub_models(folder: Path, model: Path) -> None:
    """A tiny model stored under the names of real models, in the hub's cache layout."""
    revision = "0" * 40
    for name in HUB_MODELS:
        cached = folder / "hub/hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(model, cached / "snapshots" / revision)
        facts = cached / "snapshots" / revision / "config.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "max_position_embeddings": 32768}))
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text(revision)


def hub_of(folder: Path) -> dict[str, str]:
    """Environment variables with which the models of the hub are those of the folder."""
    return {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}


def shell(folder: Path, script: str, kind: str, agentrl: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a block in bash; the first failing command ends it.

    Args:
        agentrl: the first words of a command line, which run `agentrl`.
    """
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    command = tools / "agentrl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {SHIM} "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        **hub_of(folder),
        "OMP_NUM_THREADS": "1",
        "AGENTRL_OF_TESTS": json.dumps([*agentrl]),
        "DRY_RUN": str(int(kind == "gpu")),
        "COLUMNS": "120",
    }
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=540,
    )  # fmt: skip
