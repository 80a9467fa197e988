"""The quickstart, end to end, then every command of README and docs, in order, in a new folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reader import ROOT, SHELL_KINDS, Block, add_hub_models, add_own_files, blocks_of, hub_of, make_clone, shell
from warm_agentrl import warm_agentrl

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLOT = ROOT / "examples/calculator/plot.py"
pytestmark = pytest.mark.minutes
SUMMARY_KEYS = {
    "success_before",
    "success_after",
    "num_test_tasks",
    "samples_per_task",
    "teacher_share_correct",
    "tool_call_share",
    "sft_steps",
    "rl_steps",
    "sft_seconds",
    "rl_seconds",
    "seed",
}
ELSEWHERE = {"tutorial.md"}  # test_tutorial.py runs it outside a clone
EVERY_CHANGE = {"README.md", "sglang.md"}  # pages whose commands run at each change


def pages_with(*kinds: str) -> list[object]:
    """The pages with commands of these kinds that no earlier page has."""
    seen, found = set[str](), list[Path]()
    for page in PAGES:
        own = {block.commands for block in blocks_of(page) if block.language == "sh" and block.kind in kinds}
        found += [page] * (page.name not in ELSEWHERE and not own <= seen)
        seen |= own
    return [
        pytest.param(page, id=page.name, marks=() if page.name in EVERY_CHANGE else pytest.mark.nightly)
        for page in found
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_declare_where_they_run(page):
    kinds = {block.kind for block in blocks_of(page) if block.language in ("sh", "bash")}
    assert kinds <= SHELL_KINDS
    assert not any(block.language in ("bash", "shell", "console") for block in blocks_of(page))
    placeholders = [block.text for block in blocks_of(page) if block.language == "sh" and "…" in block.text]
    assert placeholders == []


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> Path:
    """A folder after the quickstart, with outputs/quickstart."""
    folder = tmp_path_factory.mktemp("quickstart")
    subprocess.run([sys.executable, "-m", "agentrl", "quickstart", "--seed", "0"], cwd=folder, check=True)
    return folder


def replay(agentrl: list[str], folder: Path, *words: str) -> dict[str, Any]:
    """The result of one replay mode. Any: JSON."""
    command = [*agentrl, "replay", *words, "--json", "-"]
    found = json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)
    return found["results"][0]


@pytest.mark.slow
def test_the_quickstart_ends_far_above_its_teacher(quickstart, reader_agentrl, tmp_path):
    run = quickstart / "outputs/quickstart"
    summary = json.loads((run / "summary.json").read_text())
    assert summary.keys() == SUMMARY_KEYS
    assert (summary["num_test_tasks"], summary["samples_per_task"], summary["seed"]) == (512, 2, 0)
    assert summary["teacher_share_correct"] <= 0.25
    assert 0.15 <= summary["success_before"] <= 0.40
    assert summary["success_after"] >= 0.90
    assert summary["tool_call_share"] > 0.95
    assert 10 <= summary["rl_steps"] <= 100
    assert not replay(reader_agentrl, quickstart, "outputs/quickstart/rl", "audit")["failed"]
    before_and_after = ("outputs/quickstart/rl@first", "compare", "outputs/quickstart/rl@last", "--split", "val")
    gain = replay(reader_agentrl, quickstart, *before_and_after)["values"]["scores"][0]["difference"]
    assert 0.4 < gain["low"] < gain["value"] < gain["high"]
    picture = tmp_path / "picture.svg"
    subprocess.run([sys.executable, PLOT, "--out", picture], cwd=quickstart, check=True)
    assert f"{summary['success_after']:.1%}" in picture.read_text()


@pytest.fixture(scope="module")
def reader_folder(quickstart, tmp_path_factory) -> Path:
    """A clone after the quickstart."""
    folder = tmp_path_factory.mktemp("reader")
    make_clone(folder)
    add_own_files(folder)
    shutil.copytree(quickstart / "outputs", folder / "outputs", symlinks=True)
    add_hub_models(folder, (folder / "outputs/quickstart/sft/checkpoints/latest").resolve())
    return folder


@pytest.fixture(scope="module")
def reader_agentrl(reader_folder) -> Iterator[list[str]]:
    """What runs `agentrl` with the models of that folder, without the time of its imports."""
    with warm_agentrl({**os.environ, **hub_of(reader_folder)}) as words:
        yield words


@pytest.fixture
def fresh_folder(reader_folder, tmp_path) -> Iterator[Path]:
    folder = tmp_path / "agentrl"
    shutil.copytree(reader_folder, folder, symlinks=True)
    yield folder
    shutil.rmtree(folder)


def run_page(page: Path, folder: Path, kinds: set[str], agentrl: list[str]) -> None:
    for block in blocks_of(page):
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text)
        if block.language == "sh" and block.kind in kinds:
            done = shell(folder, block.text, block.kind, agentrl)
            assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            assert "Traceback" not in done.stderr, block.text


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("", "gpu"))
def test_every_command_runs(page, fresh_folder, reader_agentrl):
    run_page(page, fresh_folder, {"", "gpu"}, reader_agentrl)


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.parametrize("page", pages_with("sglang"))
def test_every_command_with_sglang_runs(page, fresh_folder, reader_agentrl):
    run_page(page, fresh_folder, {"sglang"}, reader_agentrl)


def test_a_block_knows_its_language_kind_and_file(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh gpu\nagentrl train\n```\n\n```python\n# tools.py\nx = 1\n```\n")
    assert blocks_of(page) == [Block("sh", "gpu", "agentrl train\n"), Block("python", "", "# tools.py\nx = 1\n")]
    assert [block.file for block in blocks_of(page)] == [None, "tools.py"]
    assert Block("sh", "", "agentrl view run   # in a browser\n").commands == "agentrl view run\n"
