"""`agentrl import-rollouts` and `agentrl export-rollouts`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config.data import DataConfig
from agentrl.config.model import ModelConfig
from agentrl.data.dialogues import load_dialogues
from agentrl.errors import ConfigError
from agentrl.run_folder.provenance import check_vocabulary
from agentrl.store import TrajectoryStore


def dumped(path: Path, *, bad: str = "") -> Path:
    rows = [
        {"input": f"{number}?", "output": f"{reward}", "gts": None, "score": reward, "step": 3}
        for number in range(2)
        for reward in (1.0, 0.0)
    ]
    path.mkdir()
    (path / "3.jsonl").write_text(bad + "".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_from_verls_dump_to_dialogues_pairs_and_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["import-rollouts", str(dumped(tmp_path / "dump")), str(run)]) == 0
    assert "imported 4 rollouts in 2 groups and 1 steps (verl)" in capsys.readouterr().out
    assert TrajectoryStore(run / "trajectories/train").steps == [3]
    for form, file, num_rows in (("messages", "a.jsonl", 2), ("pairs", "b.jsonl", 2), ("verl", "c.parquet", 2)):
        command = ["export-rollouts", f"{run}@3", str(tmp_path / "out" / file), "--format", form, "--min-reward", "1"]
        assert main(command) == 0
        assert f"exported {num_rows} rows" in capsys.readouterr().out
    dialogues = load_dialogues([str(tmp_path / "out/a.jsonl")], DataConfig())
    assert [dialogue.messages[-1]["content"] for dialogue in dialogues] == ["1.0", "1.0"]


def test_a_bad_row_leaves_no_folder_unless_it_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, folder = dumped(tmp_path / "dump", bad='{"input": 3}\n'), tmp_path / "run"
    command = ["import-rollouts", str(source), str(folder), "--format", "verl"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"agentrl: error: {source}/3.jsonl row 0 (line 1): field 'input': expected text")
    assert "--skip-bad-rows" in error
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]
    assert main([*command, "--skip-bad-rows", "--split", "val"]) == 0
    error = capsys.readouterr().err
    assert "agentrl: skipped: " in error
    assert "skipped 1 bad rows" in error
    assert {stored.split for stored in TrajectoryStore(folder / "trajectories/val").scan()} == {"val"}
    assert main(command) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_imported_rollouts_are_not_trained_on(tmp_path: Path) -> None:
    assert main(["import-rollouts", str(dumped(tmp_path / "dump")), str(tmp_path / "run")]) == 0
    folder = tmp_path / "run/trajectories/train"
    with pytest.raises(ConfigError, match="were imported and have no tokens to train on"):
        check_vocabulary(TrajectoryStore(folder), folder, ModelConfig(path="anything"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["import-rollouts", "nowhere", "run"], "there is no 'nowhere'"),
        (["import-rollouts", "dump", "run", "--reward-column", "x"], "--reward-column needs --format trl"),
        (["export-rollouts", "nowhere", "a.jsonl", "--format", "messages"], "there is no 'nowhere'"),
        (["export-rollouts", "dump", "a.txt", "--format", "messages"], "writes a .jsonl file, not 'a.txt'"),
        (["export-rollouts", "dump", "a.jsonl", "--format", "messages", "--margin", "1"], "need --format pairs"),
        (["export-rollouts", "dump", "a.jsonl", "--format", "pairs"], "contains no trajectories"),
    ],
)
def test_mistakes_are_one_line_errors(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dumped(tmp_path / "dump")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
