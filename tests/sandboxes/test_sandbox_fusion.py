"""Sandbox Fusion as a sandbox of tools: against a server that runs the code, and misbehaves."""

from __future__ import annotations

import asyncio

import pytest
from sandbox_fusion_server import sandbox_fusion

from agentrl.errors import ConfigError
from agentrl.sandboxes.base import MAX_FILE_BYTES, SandboxEndedError, SandboxFileError, SandboxUnavailableError
from agentrl.sandboxes.loading import pool_of
from agentrl.sandboxes.sandbox_fusion import client, sandbox
from agentrl.utils import retries


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)


def on_server(work, *faults, headers=None, **settings):
    """Run `work(sandbox)` on a server with these faults; return the result and the server's record."""

    async def main(url):
        pool = pool_of({"kind": "sandbox_fusion", "url": url, **settings})
        try:
            async with await pool.of("a") as found:
                return await work(found)
        finally:
            await pool.close()

    with sandbox_fusion(*faults, headers=headers) as (url, behaviour):
        return asyncio.run(main(url)), behaviour


def python(*pieces, seconds=20.0, **options):
    async def work(found):
        return [await found.run_python(piece, seconds) for piece in pieces]

    return on_server(work, **options)[0]


@pytest.mark.slow
def test_files_are_kept_between_calls_and_variables_are_not():
    async def work(found):
        await found.upload("data/in.txt", b"a\nb\n")
        results = [
            await found.run_python("x = 41\nlines = open('data/in.txt').read()\nlen(lines.split())", 20),
            await found.run_python("x", 20),
            await found.run_command("wc -l < data/in.txt > made; mkdir empty; echo so far; exit 3", 20),
            await found.run_command("rm data/in.txt", 20),
        ]
        with pytest.raises(SandboxFileError, match=r"no such file: data/in\.txt"):
            await found.download("data/in.txt")
        return results, await found.download("./data/../made")

    ((first, lost, command, removed), made), behaviour = on_server(work, memory_mb=300)
    assert first.output == "2\n"
    assert "NameError: name 'x' is not defined" in lost.error
    assert lost.error.startswith('Traceback (most recent call last):\n  File "<code 1>", line 1, in <module>\n')
    assert (command.output, command.exit_code, removed.exit_code) == ("so far\n", 3, 0)
    assert made.strip() == b"2"
    assert {request["memory_limit_MB"] for request in behaviour.requests} == {300}


@pytest.mark.slow
def test_code_is_stopped_at_its_deadline_and_its_files_are_kept():
    stopped, after = python(
        "open('f', 'w').write('kept')\nprint('so far', flush=True)\nwhile True: pass", "open('f').read()", seconds=1.0
    )
    assert (stopped.timed_out, stopped.output) == (True, "so far\n")
    assert after.output == "'kept'\n"


@pytest.mark.slow
def test_code_that_ends_the_process_around_it_loses_changes():
    _, killed, after = python(
        "open('f', 'w').write('1')",
        "import os, signal\nopen('f', 'w').write('2')\nos.kill(os.getppid(), signal.SIGKILL)",
        "open('f').read()",
    )
    assert "changes of files are lost" in killed.error
    assert after.output == "'1'\n"


@pytest.mark.slow
def test_an_interpreter_that_ends_is_reported():
    ended, after = python("import os; os._exit(3)", "'next'")
    assert ended.state_lost
    assert after.output == "'next'\n"


@pytest.mark.slow
def test_files_that_are_too_large_are_not_kept():
    big, after = python(f"open('big', 'wb').truncate({sandbox.MAX_FILES_BYTES})", "import os; os.listdir()")
    assert "changes of files are lost: all files together have more than 8388608 bytes" in big.output
    assert "big" not in after.output


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ".", "a\0b"])
def test_paths_outside_of_the_working_folder_are_refused(path):
    async def work(found):
        with pytest.raises(SandboxFileError, match="must be in the working folder"):
            await found.upload(path, b"")
        with pytest.raises(SandboxFileError, match="must be in the working folder"):
            await found.download(path)
        with pytest.raises(SandboxFileError, match="more than 8388608 bytes"):
            await found.upload("big", bytes(MAX_FILE_BYTES))

    on_server(work)


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "reply",
    [
        "b''",
        "b'{'",
        "b'[' * 10**5",
        "b'[1]'",
        'b\'{"files": {"/etc/x": ""}}\'',
        'b\'{"files": {"a": "?"}}\'',
        'b\'{"files": 3, "output": 4, "exit_code": []}\'',
    ],
)
def test_false_replies_of_the_code_are_read_as_data(reply):
    code = f"""
import glob, os, signal, sys
wrapper = os.getppid()
(name,) = [part for part in open(f'/proc/{{wrapper}}/cmdline').read().split(chr(0)) if part.endswith('.py')]
import re
found = re.findall(r"[.]agentrl-[0-9a-f]+", open(name).read())[-1]
open(found, 'wb').write({reply})
os.kill(wrapper, signal.SIGKILL)
"""
    forged, after = python(code, "'next'")
    assert "lost" in forged.error + forged.output
    assert after.output == "'next'\n"


def test_long_output_is_cut():
    (result,) = python("print('first'); print('x' * 1_000_000); print('last')")
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    assert len(result.output) < 21_000


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", ["garbage", 429, 503, "error", "files", "huge", "dropped", "no output"])
def test_a_failing_server_is_asked_again(fault):
    async def work(found):
        return await found.run_python("1 + 1", 20)

    result, behaviour = on_server(work, fault, fault)
    assert (result.output, len(behaviour.requests)) == ("2\n", 3)


@pytest.mark.parametrize("faults", [[503] * 4, ["dropped"] * 4])
def test_a_server_that_goes_on_failing_is_unavailable(faults):
    async def work(found):
        with pytest.raises(SandboxUnavailableError, match="4 tries failed"):
            await found.run_python("1", 20)
        return await found.run_python("'next'", 20)

    assert on_server(work, *faults)[0].output == "'next'\n"


def test_a_server_that_hangs_is_unavailable(monkeypatch):
    monkeypatch.setattr(client, "_MARGIN_S", 0.0)
    monkeypatch.setattr(client, "_NUM_TRIES", 1)
    monkeypatch.setattr(sandbox, "GRACE_S", 0.0)

    async def work(found):
        with pytest.raises(SandboxUnavailableError, match=r"no answer in 0\.2 seconds"):
            await found.run_python("1", 0.1)

    on_server(work, "hang")


def test_retry_after_is_respected(monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def noted(seconds):
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    on_server(lambda found: found.run_python("1", 20), 429, headers={"Retry-After": "7"})
    assert max(pauses) == pytest.approx(7.0, abs=0.5)


@pytest.mark.slow
def test_requests_at_a_time_are_bounded():
    async def main(url):
        pool = pool_of({"kind": "sandbox_fusion", "url": url, "max_concurrent": 2})

        async def rollout(name):
            async with await pool.of(name) as found:
                await found.run_python("import time; time.sleep(0.05)", 20)

        await asyncio.gather(*(rollout(str(number)) for number in range(6)))
        await pool.close()
        return pool.metrics()

    with sandbox_fusion() as (url, behaviour):
        metrics = asyncio.run(main(url))
    assert (behaviour.most_running, len(behaviour.requests), metrics["sandboxes_started"]) == (2, 6, 6)


def test_nothing_runs_after_the_end():
    async def work(found):
        await found.kill()
        with pytest.raises(SandboxEndedError):
            await found.run_python("1", 20)

    assert on_server(work)[1].requests == []


def test_the_address_comes_from_the_setting_or_the_environment(monkeypatch):
    monkeypatch.delenv("SANDBOX_FUSION_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="need 'url', or the variable SANDBOX_FUSION_ENDPOINT"):
        pool_of("sandbox_fusion")
    monkeypatch.setenv("SANDBOX_FUSION_ENDPOINT", "localhost:8080")
    with pytest.raises(ConfigError, match="must begin with http"):
        pool_of("sandbox_fusion")

    async def main():
        async with pool_of("sandbox_fusion").borrowed() as owned, owned as found:
            return await found.run_python("6 * 7", 20)

    with sandbox_fusion() as (url, _):
        monkeypatch.setenv("SANDBOX_FUSION_ENDPOINT", f"{url}/run_code")
        assert asyncio.run(main()).output == "42\n"


def test_a_server_that_cannot_be_reached_is_named_before_the_first_call():
    with sandbox_fusion() as (url, _):
        pass

    async def main():
        await pool_of({"kind": "sandbox_fusion", "url": url}).of("a")

    with pytest.raises(ConfigError, match=rf"the sandbox {url}/run_code failed: 4 tries failed"):
        asyncio.run(main())


def test_an_address_without_the_endpoint_is_named():
    async def main(url):
        pool = pool_of({"kind": "sandbox_fusion", "url": f"{url}/v2"})
        async with pool.borrowed() as owned, owned as found:
            with pytest.raises(ConfigError, match=r"/v2/run_code answers 404"):
                await found.run_python("1", 20)

    with sandbox_fusion() as (url, _):
        asyncio.run(main(url))


def test_lone_surrogates_reach_the_code():
    (result,) = python("ascii('\ud800')")
    assert "UnicodeEncodeError" in result.error
