from __future__ import annotations

import asyncio

import pytest
from local_sandboxes import in_sandbox, python, require_bubblewrap

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import SandboxFileError
from agentrl.sandboxes.local import bubblewrap, sandbox
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox


def test_an_exception_gives_the_traceback_of_the_code_alone():
    (result,) = python("def half(n):\n    return n / 0\nprint('so far')\nhalf(2)")
    assert result.output == "so far\n"
    assert result.error.splitlines()[0] == "Traceback (most recent call last):"
    assert "return n / 0" in result.error
    assert "<string>" not in result.error
    assert result.error.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)",
        "sum(range(10**12))",
    ],
    ids=["ignores the signal", "holds the interpreter lock"],
)
def test_code_that_does_not_stop_is_killed(code):
    stopped, after = python(code, "'next'", seconds=0.5)
    assert (stopped.timed_out, stopped.state_lost) == (True, True)
    assert after.output == "'next'\n"


def test_a_command_is_killed_at_its_deadline_with_what_it_started():
    async def run(sandbox):
        stopped = await sandbox.run_command("sleep 71 | sleep 72", 0.3)
        return stopped, await sandbox.run_python(SLEEPING, 10)

    stopped, left = in_sandbox(run)
    assert stopped.timed_out
    assert left.output == "[]\n"


SLEEPING = """
import pathlib
found = [path.read_bytes() for path in pathlib.Path('/proc').glob('[0-9]*/cmdline')]
[line for line in found if line.startswith(b'sleep')]
"""


@pytest.mark.parametrize("path", ["missing", "data", "/usr/none/x", "a\0b"])
def test_files_that_cannot_be_read_are_named(path):
    async def run(sandbox):
        await sandbox.run_command("mkdir data", 10)
        with pytest.raises(SandboxFileError, match=r"no such file|embedded null"):
            await sandbox.download(path)

    in_sandbox(run)


def test_output_that_is_not_text_is_shown_as_text():
    (result,) = python(r"import sys; n = sys.stdout.buffer.write(b'\xff\xfe\x00ok')")
    assert result.output.endswith("ok")


def test_a_fork_in_the_code_answers_once():
    forked, after = python("import os, time\nif os.fork(): time.sleep(0.2)", "'next'")
    assert forked.error == ""
    assert after.output == "'next'\n"


@pytest.mark.slow
def test_what_the_machine_does_not_give_is_named(monkeypatch):
    require_bubblewrap()

    def shared(settings, seccomp, program, setup):
        isolated = bubblewrap.command(settings, seccomp, program)
        return [each if each != "--unshare-all" else "--unshare-uts" for each in isolated]

    monkeypatch.setattr(sandbox, "command", shared)
    with pytest.raises(ConfigError, match="processes of this machine are hidden"):
        asyncio.run(LocalProvider(LocalSandbox()).check())


def test_bubblewrap_that_cannot_start_is_named(monkeypatch):
    require_bubblewrap()
    failing = ["/bin/sh", "-c", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1"]
    monkeypatch.setattr(sandbox, "command", lambda *_, **__: failing)
    with pytest.raises(ConfigError, match="setting up uid map: Permission denied"):
        asyncio.run(LocalProvider(LocalSandbox()).check())


def test_missing_bubblewrap_is_named(monkeypatch):
    bubblewrap.bubblewrap.cache_clear()
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigError, match="apt-get install bubblewrap"):
        asyncio.run(LocalProvider(LocalSandbox()).check())
    bubblewrap.bubblewrap.cache_clear()


def test_an_interpreter_that_cannot_run_is_named(tmp_path):
    require_bubblewrap()
    with pytest.raises(ConfigError, match="set 'python' of the sandbox"):
        asyncio.run(LocalProvider(LocalSandbox(python=tmp_path / "python")).check())
