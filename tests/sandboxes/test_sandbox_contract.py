"""What every kind of sandbox does: see `agentrl.sandboxes.base`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sandbox_kinds import ALL_KINDS, open_provider

from agentrl.sandboxes import SandboxEndedError, SandboxProvider, SandboxUnavailableError
from agentrl.sandboxes.base import MAX_FILE_BYTES, MAX_OUTPUT_CHARS, SandboxFileError

LONG_S = 30.0
"""A deadline that is not reached."""


@pytest.fixture(scope="module", params=ALL_KINDS)
def provider(request, tmp_path_factory) -> Iterator[SandboxProvider]:
    with open_provider(request.param, tmp_path_factory.mktemp("sandboxes")) as opened:
        yield opened


def in_new(provider, work):
    """Run `work` in a new sandbox."""

    async def run():
        sandbox = await provider.start()
        try:
            return await work(sandbox)
        finally:
            await sandbox.kill()

    return asyncio.run(run())


def python(provider, *pieces, seconds=LONG_S):
    async def run(sandbox):
        return [await sandbox.run_python(piece, seconds) for piece in pieces]

    return in_new(provider, run)


def bash(provider, *commands, seconds=LONG_S):
    async def run(sandbox):
        return [await sandbox.run_command(command, seconds) for command in commands]

    return in_new(provider, run)


def test_the_check_passes(provider):
    asyncio.run(provider.check())


def test_variables_are_kept_and_the_last_value_is_shown(provider):
    first, second, third = python(provider, "x = 41", "print('out')\nx + 1", "y = x\nNone")
    assert (first.output, second.output, third.output) == ("", "out\n42\n", "")
    assert (second.error, second.timed_out, second.state_lost) == ("", False, False)


def test_python_bash_and_files_share_the_working_folder(provider):
    async def run(sandbox):
        await sandbox.upload("data/in.txt", b"a\nb\n")
        await sandbox.run_command("wc -l < data/in.txt > lines", LONG_S)
        seen = await sandbox.run_python(
            "n = open('data/out', 'wb').write(b'\\xff\\x00'); int(open('lines').read())", LONG_S
        )
        return seen.output, await sandbox.download("lines"), await sandbox.download("data/out")

    seen, lines, binary = in_new(provider, run)
    assert (seen, lines.strip(), binary) == ("2\n", b"2", b"\xff\x00")


def test_an_exception_is_a_result(provider):
    failed, after = python(provider, "x = 1\nprint('so far')\n1 / 0", "x")
    assert failed.output == "so far\n"
    assert failed.error.rstrip().endswith("ZeroDivisionError: division by zero")
    assert (failed.timed_out, failed.state_lost) == (False, False)
    assert after.output == "1\n"


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "raise KeyboardInterrupt", "x ="])
def test_the_interpreter_goes_on_after_every_exception(provider, code):
    _, failed, after = python(provider, "x = 1", code, "x")
    assert failed.error
    assert after.output == "1\n"


def test_commands_have_exit_codes_and_both_outputs(provider):
    failed, passed, missing = bash(provider, "echo out; echo err >&2; exit 3", "true", "no_such_program_here")
    assert (failed.output, failed.exit_code, failed.timed_out) == ("out\nerr\n", 3, False)
    assert (passed.output, passed.exit_code) == ("", 0)
    assert missing.exit_code == 127


def test_a_command_does_not_wait_for_what_it_leaves_running(provider):
    (result,) = bash(provider, "sleep 100 & echo started")
    assert (result.output, result.exit_code, result.timed_out) == ("started\n", 0, False)


def test_quotes_and_lines_of_commands_stay(provider):
    (result,) = bash(provider, "cat <<'END'\n$HOME \"it's\" `x` \\\nEND\necho 'a  b'")
    assert result.output == '$HOME "it\'s" `x` \\\na  b\n'


@pytest.mark.slow
def test_code_is_stopped_at_its_deadline_and_its_output_is_kept(provider):
    async def run(sandbox):
        stopped = await sandbox.run_python("x = 1\nprint('before', flush=True)\nwhile True: pass", 0.7)
        return stopped, await sandbox.run_python("x", LONG_S)

    stopped, after = in_new(provider, run)
    assert (stopped.output, stopped.timed_out, stopped.state_lost) == ("before\n", True, False)
    assert after.output == "1\n"


@pytest.mark.slow
def test_a_command_is_stopped_at_its_deadline_and_its_output_is_kept(provider):
    async def run(sandbox):
        stopped = await sandbox.run_command("echo before; sleep 71 | sleep 72", 0.5)
        return stopped, await sandbox.run_command("echo after", LONG_S)

    stopped, after = in_new(provider, run)
    assert (stopped.output, stopped.timed_out) == ("before\n", True)
    assert (after.output, after.timed_out) == ("after\n", False)


def test_an_interpreter_that_ends_is_replaced_and_files_are_kept(provider):
    _, ended, after = python(
        provider,
        "x = 1; n = open('note', 'w').write('kept')",
        "import os; os._exit(1)",
        "[open('note').read(), 'x' in vars()]",
    )
    assert ended.state_lost
    assert after.output == "['kept', False]\n"


@pytest.mark.parametrize("tool", [python, bash])
def test_the_middle_of_a_long_output_is_left_out(provider, tool):
    (result,) = tool(
        provider,
        "print('first'); print('x' * 300_000); print('last')"
        if tool is python
        else "echo first; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last",
    )
    assert len(result.output) <= MAX_OUTPUT_CHARS + 60
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    assert "left out" in result.output


@pytest.mark.parametrize("path", ["missing", "data", "data/missing/x", "a\0b"])
def test_files_that_cannot_be_read_are_named(provider, path):
    async def run(sandbox):
        await sandbox.run_command("mkdir data", LONG_S)
        with pytest.raises(SandboxFileError) as caught:
            await sandbox.download(path)
        return str(caught.value)

    message = in_new(provider, run)
    assert message if "\0" in path else message.endswith(f": {path}")


def test_a_file_that_cannot_be_written_is_named(provider):
    async def run(sandbox):
        await sandbox.upload("file", b"")
        with pytest.raises(SandboxFileError, match="file/x"):
            await sandbox.upload("file/x", b"")

    in_new(provider, run)


@pytest.mark.slow
def test_files_are_limited_in_size(provider):
    async def run(sandbox):
        with pytest.raises(SandboxFileError, match="bytes"):
            await sandbox.upload("big", bytes(MAX_FILE_BYTES + 1))
        await sandbox.run_python(f"open('big', 'wb').truncate({MAX_FILE_BYTES + 1})", LONG_S)
        with pytest.raises(SandboxFileError, match="more than"):
            await sandbox.download("big")
        await sandbox.upload("large", bytes(2**20))
        return await sandbox.download("large")

    assert in_new(provider, run) == bytes(2**20)


def test_sandboxes_share_nothing(provider):
    async def run():
        one, other = await asyncio.gather(provider.start(), provider.start())
        try:
            await one.run_python("secret = 1", LONG_S)
            await one.upload("file", b"secret")
            with pytest.raises(SandboxFileError):
                await other.download("file")
            listed = await other.run_command("ls", LONG_S)
            return listed.output, (await other.run_python("'secret' in vars()", LONG_S)).output
        finally:
            await asyncio.gather(one.kill(), other.kill())

    assert asyncio.run(run()) == ("", "False\n")


CALLS = {
    "run_python": lambda sandbox: sandbox.run_python("1", LONG_S),
    "run_command": lambda sandbox: sandbox.run_command("true", LONG_S),
    "upload": lambda sandbox: sandbox.upload("a", b""),
    "download": lambda sandbox: sandbox.download("a"),
}


def test_after_a_kill_every_call_says_so(provider):
    async def run(sandbox):
        await sandbox.run_python("1", LONG_S)
        await sandbox.kill()
        await sandbox.kill()
        for call in CALLS.values():
            with pytest.raises(SandboxEndedError):
                await call(sandbox)

    in_new(provider, run)


@pytest.mark.parametrize(
    "call",
    [
        lambda sandbox: sandbox.run_python("open('ready', 'w').close()\nwhile True: pass", LONG_S),
        lambda sandbox: sandbox.run_command("touch ready; sleep 100", LONG_S),
    ],
    ids=["run_python", "run_command"],
)
def test_a_kill_ends_the_call_that_runs(provider, call):
    async def run(sandbox):
        await sandbox.run_python("1", LONG_S)  # the interpreter is there
        running = asyncio.ensure_future(call(sandbox))
        await asyncio.sleep(0)
        await sandbox.kill()
        with pytest.raises(SandboxEndedError):
            await running

    in_new(provider, run)


@pytest.mark.parametrize("cancelled", ["run_python", "run_command"])
def test_a_cancelled_call_ends_the_sandbox(provider, cancelled):
    """What was cancelled may still run, so nothing else may run beside it."""

    async def run(sandbox):
        await sandbox.run_python("1", LONG_S)
        running = asyncio.ensure_future(getattr(sandbox, cancelled)("import time; time.sleep(100)", LONG_S))
        for _ in range(3):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(SandboxUnavailableError):
            await sandbox.run_python("1", LONG_S)

    in_new(provider, run)


def test_calls_at_the_same_time_run_one_after_another(provider):
    async def run(sandbox):
        await sandbox.run_python("n = 0", LONG_S)
        calls = [sandbox.run_python("n += 1; n", LONG_S) for _ in range(5)]
        return sorted(int(result.output) for result in await asyncio.gather(*calls))

    assert in_new(provider, run) == [1, 2, 3, 4, 5]
