"""`agentrl view`: from the command line to Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from viewer_runs import group, rollout, write_metrics, write_run

from agentrl.cli.main import main
from agentrl.concurrency.signals import ENDING
from agentrl.viewer.runs import viewed_runs

FREE = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}


def refused(capsys, *words: object) -> str:
    assert main(["view", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("agentrl: error: ")


def test_missing_run_is_a_one_line_error_with_nearby_runs(capsys, tmp_path):
    write_run(tmp_path / "mine", {1: [group("a", rollout())]})
    assert refused(capsys, tmp_path / "nime") == f"there is no '{tmp_path}/nime'; runs nearby: {tmp_path}/mine"
    (tmp_path / "empty").mkdir()
    assert "is not a run folder" in refused(capsys, tmp_path / "empty")
    assert refused(capsys, tmp_path / "mine", tmp_path / "other").startswith("there is no ")


def test_folder_of_runs_lists_newest_first_without_following_links(tmp_path):
    for age, place in enumerate(("b/2", "a", "b/1", "too/deep/for/us")):
        write_metrics(write_run(tmp_path / place, {1: [group("a", rollout())]}), [{"step": 1}])
        os.utime(tmp_path / place / "metrics.jsonl", (1e9 - age, 1e9 - age))
    (tmp_path / "b/latest").symlink_to(tmp_path / "b/2")
    runs = viewed_runs([str(tmp_path)])
    assert [run.name for run in runs] == ["b/2", "a", "b/1"]
    assert [run.name for run in viewed_runs([str(tmp_path / "a"), str(tmp_path / "b")])] == [f"{tmp_path}/a", "2", "1"]
    assert not any(run.index.snapshot().parts for run in runs)  # read only when a page requests it


def test_port_in_use_and_missing_tokenizer_are_one_line_errors(capsys, tmp_path):
    write_run(tmp_path, {1: [group("a", rollout())]})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(capsys, tmp_path, "--port", port).startswith(f"port {port} is in use")
    assert refused(capsys, tmp_path, "--port", 70000).startswith("port 70000 cannot be used")
    assert refused(capsys, tmp_path, "--tokenizer", tmp_path).startswith(f"'--tokenizer {tmp_path}': there is no file")


def read_until_indexed(address: str) -> Iterator[bytes]:
    """Answers of the viewer, which indexes a run while it already serves; on a busy machine that takes seconds."""
    for _ in range(100):
        with urllib.request.urlopen(address) as answer:
            yield answer.read()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("asked_by", [signal.SIGINT, signal.SIGTERM])
def test_viewer_serves_localhost_only_writes_nothing_and_stops(tmp_path, asked_by):
    write_run(tmp_path, {step: [group("a", rollout())] for step in (1, 2)})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    command = [sys.executable, "-m", "agentrl", "view", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=FREE)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", process.stdout.readline())[0]
        assert any(b'"uid":"a"' in rows for rows in read_until_indexed(f"{address}api/rows"))
        listening = subprocess.run(["cat", f"/proc/{process.pid}/net/tcp"], capture_output=True, text=True).stdout
        port = int(address.split(":")[2].split("/")[0])
        assert f"0100007F:{port:04X} 00000000:0000 0A" in listening
        process.send_signal(asked_by)
        assert process.wait(60) == 0
        assert process.stderr.read().splitlines() == [f"agentrl: {ENDING}"]
    finally:
        process.kill()
        process.communicate()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
