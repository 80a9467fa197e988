"""Datasets run no code: a code path in a row is refused before it is imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli.main import main


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(tmp_path / 'was_here')!r}, 'w')\n")
    return file


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"agent_name": "EVIL:Loop"}, "agent_name"),
        ({"agent_name": "evil.Loop"}, "agent_name"),
        ({"agent_name": "os:system"}, "agent_name"),
        ({"extra_info": {"tool_config": {"tool_format": "EVIL:Parser"}}}, "tool_config.tool_format"),
        ({"extra_info": {"tool_config": {"tool_format": "sglang/EVIL:Parser"}}}, "tool_config.tool_format"),
    ],
)
@pytest.mark.parametrize("model", [False, True])
def test_a_row_is_refused_with_its_place_and_the_way_out(
    task_folder: Path, evil: Path, capsys: pytest.CaptureFixture[str], row: dict[str, object], field: str, model: bool
) -> None:
    rows = evil.with_name("rows.jsonl")
    text = json.dumps({"prompt": "1+1", "ground_truth": "2", **row}).replace("EVIL", str(evil))
    rows.write_text(json.dumps({"prompt": "1", "ground_truth": "1"}) + "\n" + text + "\n")

    status = main(["data", "check", str(rows), *(["--model", str(task_folder / "model")] if model else [])])

    said = "".join(capsys.readouterr())
    assert status != 0
    assert f"field '{field}'" in said
    assert "is not run" in said
    assert not evil.with_name("was_here").exists()
