from __future__ import annotations

import asyncio

import pytest
from local_sandboxes import bash, in_sandbox, python, require_bubblewrap

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import MAX_FILE_BYTES, MAX_OUTPUT_CHARS, SandboxEndedError, SandboxFileError
from agentrl.sandboxes.local import bubblewrap, sandbox
from agentrl.sandboxes.local.sandbox import LocalProvider
from agentrl.sandboxes.local.settings import LocalSandbox


def test_variables_are_kept_and_the_last_value_is_shown():
    first, second, third = python("x = 41", "x + 1", "y = x\nNone")
    assert (first.output, second.output, third.output) == ("", "42\n", "")


def test_an_exception_gives_the_traceback_of_the_code_alone():
    (result,) = python("def half(n):\n    return n / 0\nprint('so far')\nhalf(2)")
    assert result.output == "so far\n"
    assert result.error.splitlines()[0] == "Traceback (most recent call last):"
    assert "return n / 0" in result.error
    assert "<string>" not in result.error
    assert result.error.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise KeyboardInterrupt", "raise BaseException('all')"])
def test_the_interpreter_goes_on_after_every_exception(code):
    _, failed, after = python("x = 1", code, "x")
    assert failed.error
    assert after.output == "1\n"


def test_an_interpreter_that_ends_is_replaced_and_files_are_kept():
    _, ended, after = python(
        "x = 1; open('note', 'w').write('kept')", "import os; os._exit(1)", "open('note').read(), 'x' in vars()"
    )
    assert ended.state_lost
    assert after.output == "('kept', False)\n"


def test_code_that_stops_at_an_interrupt_keeps_its_variables():
    stopped, after = python("x = 1\nwhile True: pass", "x", seconds=0.5)
    assert (stopped.timed_out, stopped.state_lost) == (True, False)
    assert after.output == "1\n"


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


def test_a_command_has_an_exit_code_and_both_outputs():
    result = bash("echo out; echo err >&2; cd /tmp; exit 3")
    assert (result.output, result.exit_code) == ("out\nerr\n", 3)


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


def test_commands_and_code_share_files():
    async def run(sandbox):
        await sandbox.upload("data/in.txt", b"a\nb\n")
        await sandbox.run_command("wc -l < data/in.txt > lines", 10)
        return await sandbox.run_python("open('lines').read().strip()", 10), await sandbox.download("lines")

    result, data = in_sandbox(run)
    assert (result.output, data.strip()) == ("'2'\n", b"2")


@pytest.mark.parametrize("path", ["missing", "data", "/usr/none/x", "a\0b"])
def test_files_that_cannot_be_read_are_named(path):
    async def run(sandbox):
        await sandbox.run_command("mkdir data", 10)
        with pytest.raises(SandboxFileError, match=r"no such file|embedded null"):
            await sandbox.download(path)

    in_sandbox(run)


def test_files_are_limited_in_size():
    async def run(sandbox):
        with pytest.raises(SandboxFileError, match="bytes"):
            await sandbox.upload("big", bytes(MAX_FILE_BYTES + 1))
        await sandbox.run_python(f"open('big', 'wb').truncate({MAX_FILE_BYTES + 1})", 10)
        with pytest.raises(SandboxFileError, match="more than"):
            await sandbox.download("big")
        await sandbox.upload("largest", bytes(MAX_FILE_BYTES))
        return await sandbox.download("largest")

    assert in_sandbox(run) == bytes(MAX_FILE_BYTES)


def test_the_middle_of_a_long_output_is_left_out():
    (result,) = python("print('first'); print('x' * 1_000_000); print('last')")
    assert len(result.output) <= MAX_OUTPUT_CHARS + 60
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    assert "left out" in result.output


def test_output_that_is_not_text_is_shown_as_text():
    (result,) = python(r"import sys; n = sys.stdout.buffer.write(b'\xff\xfe\x00ok')")
    assert result.output.endswith("ok")


def test_a_fork_in_the_code_answers_once():
    forked, after = python("import os, time\nif os.fork(): time.sleep(0.2)", "'next'")
    assert forked.error == ""
    assert after.output == "'next'\n"


def test_the_check_passes_here():
    require_bubblewrap()
    asyncio.run(LocalProvider(LocalSandbox()).check())


def test_what_the_machine_does_not_give_is_named(monkeypatch):
    require_bubblewrap()

    def shared(settings, seccomp, program):
        isolated = bubblewrap.command(settings, seccomp, program)
        return [each if each != "--unshare-all" else "--unshare-uts" for each in isolated]

    monkeypatch.setattr(sandbox, "command", shared)
    with pytest.raises(ConfigError, match="processes of this machine are hidden"):
        asyncio.run(LocalProvider(LocalSandbox()).check())


def test_bubblewrap_that_cannot_start_is_named(monkeypatch):
    require_bubblewrap()
    failing = ["/bin/sh", "-c", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1"]
    monkeypatch.setattr(sandbox, "command", lambda *_: failing)
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


def test_a_cancelled_call_ends_the_sandbox():
    async def run(sandbox):
        call = asyncio.create_task(sandbox.run_python("while True: pass", 60))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(SandboxEndedError):
            await sandbox.run_python("1", 1)

    in_sandbox(run)
