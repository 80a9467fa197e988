"""Missing paths and wrong flags are refused before torch, transformers or pyarrow is imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

REFUSED = [
    (["export-rollouts", "no", "out.jsonl", "--format", "messages"], ["there is no 'no'"]),
    (["export-rollouts", ".", "out.jsonl", "--format", "verl"], ["writes a .parquet file"]),
    (
        ["export-rollouts", "no@3", "out.txt", "--format", "messages", "--margin", "1"],
        ["there is no 'no'", "writes a .jsonl file, not 'out.txt'", "--margin need --format pairs"],
    ),
    (["export-rollouts", ".", "out", "--format", "mesages"], ["invalid choice: 'mesages'"]),
    (["import-rollouts", "no", "new"], ["there is no 'no'"]),
    (["import-rollouts", "n" * 300, "new"], ["there is no 'nnn"]),
    (
        ["import-rollouts", "no", "new", "--format", "verl", "--reward-column", "a"],
        ["there is no 'no'", "--reward-column needs --format trl"],
    ),
    (["import-rollouts", ".", "new", "--format", "xml"], ["invalid choice: 'xml'"]),
    (["data", "check", "no.jsonl"], ["no.jsonl: no such file"]),
    (
        ["data", "check", "no.jsonl", "--val", "nor.jsonl", "--model", "./none", "--reward", "no.py:score"],
        ["data.train_files: no.jsonl: no such", "nor.jsonl: no such", "there is no folder './none'", "no file 'no.py'"],
    ),
    (["data", "chekc", "no.jsonl"], ["invalid choice: 'chekc'"]),
    (["data", "check", "rows.jsonl", "--reward", "gsm9k"], ["did you mean 'gsm8k'?"]),
    (["replay", "no", "audit"], ["there is no 'no'"]),
    (["replay", "no@last", "compare", "nor"], ["there is no 'no'", "there is no 'nor'"]),
    (["replay", ".", "rescore", "--reward", "no.py:score"], ["there is no file 'no.py'"]),
    (["replay", ".", "adit"], ["did you mean 'audit'?"]),
    (["replay", ".", "audit", "--unrecorded", "maybe"], ["invalid choice: 'maybe'"]),
    (["replay", ".", "audit", "--level", "2"], ["--level: expected a number between 0 and 1"]),
    (["view", "no"], ["there is no 'no'"]),
    (
        ["view", "no", "nor", "--tokenizer", "none"],
        ["there is no 'no'", "there is no 'nor'", "no file 'none'"],
    ),
    (["view", ".", "--port", "x"], ["invalid int value: 'x'"]),
    (["export", "no", "new"], ["there is no folder 'no'"]),
    (["export", ".", "new"], ["there is no config.json"]),
    (["export", ".", "new", "--dtype", "float32"], ["remove --dtype"]),
    (["export", ".", "new", "--dtype", "int8"], ["invalid choice: 'int8'"]),
    (["push", "no", "owner/model"], ["there is no 'no'"]),
    (["push", "no", "owner/model", "--step", "x"], ["invalid int value: 'x'"]),
    (["eval", "--from", "no"], ["there is no 'no'"]),
    (["eval", "--from", "no", "--reward", "no.py"], ["there is no 'no'", "there is no file 'no.py'"]),
    (["eval", "--responses", "no.jsonl"], ["no.jsonl: no such file"]),
    (
        [
            *("train", "model.path=./none", "data.train_files=[rows.jsonl]"),
            *("rollout.agent.default_agent_loop=react", "rollout.multi_turn.thinking=strip"),
        ],
        ["there is no folder 'none'", "thinking=strip' does not work with agent loop 'react'"],
    ),
]

REFUSE_ALL = """
import contextlib, io, json, sys
from agentrl.cli.main import main

for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(words)
        except SystemExit as ended:
            status = ended.code
    heavy = [name for name in ("torch", "transformers", "pyarrow", "datasets") if name in sys.modules]
    print(json.dumps([status, errors.getvalue().splitlines(), heavy]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[tuple[int, list[str], list[str]]]:
    """Exit status, error lines and heavy modules of each command, in the order above; all in one process."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "rows.jsonl").write_text('{"prompt": "a", "ground_truth": "b"}\n')
    words = json.dumps([words for words, _ in REFUSED])
    command = [sys.executable, "-c", REFUSE_ALL]
    done = subprocess.run(command, input=words, capture_output=True, text=True, cwd=folder, check=True)
    assert [path.name for path in folder.iterdir()] == ["rows.jsonl"]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("number", range(len(REFUSED)), ids=lambda number: " ".join(REFUSED[number][0])[:60])
def test_refused_before_anything_heavy_is_imported(results, number):
    status, lines, heavy = results[number]
    complaints = REFUSED[number][1]
    assert status == 2
    assert "Traceback" not in "".join(lines)
    assert all(any(complaint in line for line in lines) for complaint in complaints), lines
    # no such line: argparse reported the error
    assert sum(line.startswith("agentrl: error: ") for line in lines) in (0, len(complaints)), lines
    assert heavy == []
