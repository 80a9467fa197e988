"""Processes of harnesses in every kind of place: what they get, how they end, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from harness_builders import KINDS, new_mark, of_kind, places_of, processes, run

from agentrl.errors import ConfigError
from agentrl.harness.places import open_place
from agentrl.harness.process import MAX_OUTPUT_BYTES, HarnessProcess

each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user can read, as the one of a sandbox that root starts."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def started(process: HarnessProcess) -> None:
    """Wait until the harness has written something."""
    while not process.output:  # noqa: ASYNC110  # the process knows no event for it
        await asyncio.sleep(0.01)


@each_kind
def test_a_harness_gets_its_folders_its_files_and_no_variables_of_the_run(kind, monkeypatch, readable):
    monkeypatch.setenv("SECRET_OF_THE_RUN", "hidden-value")
    task = readable / "task"
    task.mkdir()
    (task / "data.txt").write_text("of the task\n")
    (task / "link").symlink_to("data.txt")
    script = 'cat "$HOME/a/b.txt"; cat link; cat; pwd; env; touch new "$HOME/new" && exit 7'
    ended = run(
        of_kind(kind, monkeypatch),
        ["bash", "-c", script],
        {"a/b.txt": "of HOME é\n"},
        stdin="from stdin\n",
        template=task,
    )
    assert ended.exit_code == 7
    home, copied, stdin, folder, *variables = ended.output.splitlines()
    assert (home, copied, stdin) == ("of HOME é", "of the task", "from stdin")
    assert {line.partition("=")[0] for line in variables} == {"PATH", "HOME", "LANG", "PWD", "SHLVL", "_"}
    if kind != "plain":  # folders with the same names in every rollout: harnesses show them to the model
        assert folder == {"namespaces": "/tmp/work", "sandbox": "/work"}[kind]
        assert "HOME=/tmp/home" in variables
    assert not (task / "new").exists()


@each_kind
@pytest.mark.parametrize("command", ["no-such-program", "/usr/bin"])
def test_a_command_that_does_not_exist_or_is_no_program_is_told_apart(kind, command, monkeypatch):
    ended = run(of_kind(kind, monkeypatch), [command])
    assert (ended.exit_code, ended.missing) == (None, True)
    assert ended.failed.startswith(("No such file or directory", "Permission denied"))


@each_kind
def test_a_daemon_ends_with_its_harness(kind, monkeypatch):
    mark = new_mark()
    daemon = f"setsid bash -c 'exec -a {mark} sleep 1000' {mark} >/dev/null 2>&1 & disown"
    ended = run(of_kind(kind, monkeypatch), ["bash", "-c", f"{daemon}; (setsid bash -c 'sleep 1001; :' {mark} &)"])
    assert ended.exit_code == 0
    assert [*processes(mark)] == []


@each_kind
def test_a_harness_that_hangs_is_ended_with_all_that_it_started(kind, monkeypatch):
    mark = new_mark()
    script = f"trap '' TERM INT HUP; echo started; (setsid bash -c 'sleep 1000; :' {mark} &); sleep 1002"

    async def until_started(process: HarnessProcess):
        await started(process)
        return await process.end()

    ended = run(of_kind(kind, monkeypatch), ["bash", "-c", script, mark], until=until_started)
    assert (ended.exit_code, ended.output) == (None, "started\n")
    assert [*processes(mark)] == []


@each_kind
def test_only_start_and_end_of_endless_output_are_kept(kind, monkeypatch):
    ended = run(of_kind(kind, monkeypatch), ["bash", "-c", "echo first; yes | head -c 3000000; echo last; kill -9 $$"])
    assert ended.exit_code == 128 + 9
    assert ended.output.startswith("first\n")
    assert ended.output.endswith("last\n")
    assert "bytes left out" in ended.output
    assert len(ended.output) < MAX_OUTPUT_BYTES + 100


@pytest.mark.parametrize("kind", ["namespaces", "sandbox"])
def test_a_harness_sees_no_process_of_the_run_and_changes_no_file_of_this_machine(kind, monkeypatch):
    target = Path(__file__).with_name("written-by-a-harness")
    script = f"ls -d /proc/[0-9]* | wc -l; touch {target} 2>/dev/null; cat /proc/{os.getpid()}/environ 2>/dev/null"
    ended = run(of_kind(kind, monkeypatch), ["bash", "-c", script])
    assert int(ended.output) < 10
    assert not target.exists()


def test_folders_below_tmp_are_hidden_but_for_those_that_are_named(monkeypatch, tmp_path):
    for name in ("named", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    given = of_kind("namespaces", monkeypatch, readonly=[str(tmp_path / "named")])
    ended = run(given, ["bash", "-c", f"cat {tmp_path}/*/file; touch {tmp_path}/named/new"])
    assert ended.output.startswith("named")
    assert "other" not in ended.output
    assert "Read-only file system" in ended.output


@each_kind
def test_without_the_process_that_started_it_a_harness_ends(kind, monkeypatch):
    """The supervisor's input closes, as when the run is killed with SIGKILL."""
    mark = new_mark()

    async def lost(process: HarnessProcess):
        await started(process)
        process.lose()
        return await process.wait()

    script = f"echo started; (setsid bash -c 'sleep 1000; :' {mark} &); sleep 1003"
    run(of_kind(kind, monkeypatch), ["bash", "-c", script, mark], until=lost)
    assert [*processes(mark)] == []


KILLED = """
import asyncio, sys
from harness_builders import PROGRAM, harness
from agentrl.harness import places
from agentrl.harness.places import open_place
from agentrl.harness.process import HarnessProcess, Job

async def start(kind, mark):
    if kind == "plain":
        places.namespaces_problem = lambda: "hidden"
    place = open_place(harness(**({"sandbox": "local"} if kind == "sandbox" else {})), None, None)
    script = f"echo {mark} > ~/mark; echo started; (setsid bash -c 'sleep 1000; :' {mark} &); sleep 1004; :"
    env = {"PATH": place.path, "HOME": place.home}
    process = await HarnessProcess.start(place, Job(["bash", "-c", script, mark], env, {}))
    while not process.output:
        await asyncio.sleep(0.01)
    print("started", flush=True)
    await process.wait()

asyncio.run(start(*sys.argv[1:]))
"""


@pytest.mark.slow
@each_kind
@pytest.mark.one_in(3)
def test_a_killed_run_leaves_no_harness(kind):
    mark = new_mark()
    line = [sys.executable, "-c", KILLED, kind, mark]
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=Path(__file__).parent) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"started\n"
        own = run.pid
        assert {*processes(mark)} - {own}
        run.kill()
    end = time.monotonic() + 30
    while left := [*processes(mark), *places_of(mark)]:
        assert time.monotonic() < end, left
        time.sleep(0.01)


def test_no_network_but_the_gateway_needs_a_boundary(monkeypatch):
    with pytest.raises(ConfigError, match="'network: gateway' needs bubblewrap"):
        open_place(of_kind("plain", monkeypatch, network="gateway"), Path("/tmp/x/socket"), None)
