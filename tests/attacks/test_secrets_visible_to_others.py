"""No secrets in process arguments, standard output or the terminal, which other programs and users can read."""

from __future__ import annotations

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
from hostile_runs import copied, with_keys

from agentrl.cli.main import main
from agentrl.viewer.serve import _leads_to


def test_the_address_of_the_viewer_is_in_no_arguments() -> None:
    with _leads_to("http://127.0.0.1:1/secret/") as opened:
        file = Path(opened.removeprefix("file://"))
        assert "secret" not in opened
        assert "http://127.0.0.1:1/secret/" in file.read_text()
        assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0
    assert not file.parent.exists()
    assert webbrowser  # the opener process gets `opened` as an argument


@pytest.mark.slow
def test_json_output_contains_nothing_else(honest_run: Path, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, subprocess\n"
        "def f(**_):\n    print('one'); os.write(1, b'two'); subprocess.run(['echo', 'three']); return 1.0\n"
    )
    command = [sys.executable, "-m", "agentrl", "replay", str(honest_run), "rescore", "--json", "-"]
    done = subprocess.run([*command, "--reward", f"{tmp_path}/loud.py:f"], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout)["results"]
    assert {"one", "two", "three"} <= set(done.stderr.replace("two", "\ntwo\n").split())


def test_escape_sequences_reach_no_terminal(
    honest_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = "\x1b]0;title\x07\x1b[2J\u202e"
    run = copied(honest_run, tmp_path / "run", with_keys({"algorithm.adv_estimator": f"x{odd}:f"}))

    assert main(["replay", str(run), "readvantage"]) == 2
    assert main(["train", "model.path=m", f"data.nothing='{odd}'"]) == 2
    said = "".join(capsys.readouterr())
    assert "⟨U+001B⟩" in said
    assert not set("\x1b\x07\u202e") & set(said)
