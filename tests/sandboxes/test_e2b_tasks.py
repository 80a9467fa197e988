"""Sandboxes of E2B for task folders: root, working folder, and the end of everything that runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from e2b_server import KEY, E2BServer, Fault, e2b_server
from e2b_system import SystemMachine
from folder_builders import make_folder

from agentrl.sandboxes.base import SandboxEndedError, SandboxSetup, SandboxUnavailableError
from agentrl.sandboxes.e2b.provider import E2BProvider
from agentrl.sandboxes.e2b.settings import E2BSandbox
from agentrl.sandboxes.loading import pool_of
from agentrl.task_folders import VerifierError, read_task_folder, task_sandbox, verify

SETUP = SandboxSetup("/srv/x", (("A", "a b"),), ("/srv/x", "/logs/verifier"))
LONG_S = 30.0


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[E2BServer]:
    with e2b_server(tmp_path / "e2b", SystemMachine) as running:
        values = {"E2B_API_KEY": KEY, "E2B_API_URL": running.url, "E2B_SANDBOX_URL": running.url}
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        yield running


def in_sandbox(work, setup=SETUP):
    async def run():
        provider = E2BProvider(E2BSandbox())
        sandbox = await provider.start(setup)
        try:
            return await work(sandbox)
        finally:
            await sandbox.kill()

    return asyncio.run(run())


@pytest.mark.slow
def test_commands_are_those_of_root_in_the_working_folder(server):
    async def work(sandbox):
        await sandbox.upload("in/a", b"1\n")
        said = await sandbox.run_command('pwd; id -u; echo "$A"; cat in/a; echo 2 > /etc/b; ls -d /logs/*', LONG_S)
        return said.output, await sandbox.download("/etc/b"), await sandbox.download("in/a")

    assert in_sandbox(work) == ("/srv/x\n0\na b\n1\n/logs/verifier\n", b"2\n", b"1\n")


@pytest.mark.slow
def test_everything_that_a_command_left_running_ends(server):
    async def work(sandbox):
        await sandbox.run_command("(setsid nohup sleep 77 & setsid env -i sleep 78 &) >/dev/null 2>&1", LONG_S)
        before = await sandbox.run_command("ps ax -o args= | grep -c '^sleep 7'", LONG_S)
        await sandbox.end_processes()
        return before.output, (await sandbox.run_command("ps ax -o args= | grep '^sleep 7'", LONG_S)).output

    assert in_sandbox(work) == ("2\n", "")


@pytest.mark.slow
def test_the_interpreter_has_the_variables_and_ends_for_good(server):
    async def work(sandbox):
        said = await sandbox.run_python("import os; n = 1; os.environ['A']", LONG_S)
        assert len(server.machines[sandbox.id].kernels) == 1
        await sandbox.end_processes()
        left = dict(server.machines[sandbox.id].kernels)
        return said.output, left, (await sandbox.run_python("n", LONG_S)).error[-30:]

    said, left, error = in_sandbox(work)
    assert ("a b" in said, left) == (True, {})
    assert "is not defined" in error


@pytest.mark.slow
def test_a_process_that_forks_again_and_again_ends(server):
    async def work(sandbox):
        await sandbox.run_command('f() { sleep 0.01; setsid bash -c "$(declare -f f); f" & }; f; f; f', 0.5)
        await sandbox.end_processes()
        return (await sandbox.run_command("ps ax -o args= | grep -c 'declare -f [f]'", LONG_S)).output

    assert in_sandbox(work) == "0\n"


@pytest.mark.slow
def test_a_command_is_stopped_and_its_output_is_kept(server):
    async def work(sandbox):
        running = asyncio.ensure_future(sandbox.run_command("echo a; sleep 300 | sleep 301", LONG_S))
        server_has = asyncio.ensure_future(asyncio.to_thread(server.wait_for, "process", 2))
        await server_has
        await asyncio.sleep(0.5)
        began = time.monotonic()
        while not running.done():
            sandbox.stop_command()
            await asyncio.wait({running}, timeout=0.05)
        return running.result(), time.monotonic() - began, await sandbox.run_command("echo on", LONG_S)

    stopped, seconds, after = in_sandbox(work)
    assert (stopped.output, stopped.timed_out, after.output) == ("a\n", False, "on\n")
    assert stopped.exit_code != 0
    assert seconds < LONG_S / 2


@pytest.mark.slow
def test_a_sandbox_that_the_service_ended_meanwhile_is_not_the_policys_fault(server):
    async def work(sandbox):
        machine = server.machines[sandbox.id]
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(server.end(machine), server._loop))
        with pytest.raises(SandboxUnavailableError):
            await sandbox.end_processes()

    in_sandbox(work)


@pytest.mark.slow
def test_a_sandbox_that_ends_while_a_command_runs(server):
    async def work(sandbox):
        server.fail("process", Fault(die=True))
        with pytest.raises(SandboxEndedError):
            await sandbox.run_command("sleep 5", LONG_S)

    in_sandbox(work)


@pytest.mark.slow
def test_a_template_that_cannot_run_tasks_is_named(server):
    server.fail("process", Fault(503), Fault(503), Fault(503), Fault(503), Fault(503), Fault(503), Fault(503))
    with pytest.raises(SandboxUnavailableError, match="E2B"):
        in_sandbox(None)
    assert server.machines == {}


@pytest.mark.slow
def test_a_sandbox_that_ends_during_the_tests_gives_no_reward(server, tmp_path):
    folder = make_folder(tmp_path / "task", dockerfile="FROM debian\nWORKDIR /app\n")

    async def run():
        pool, task = pool_of("e2b"), read_task_folder(folder)
        try:
            async with task_sandbox(task, pool) as sandbox:
                server.fail("process", *[Fault()] * 3, Fault(die=True))  # the fourth command is test.sh
                await verify(sandbox, task)
        finally:
            await pool.close()

    with pytest.raises(VerifierError):
        asyncio.run(run())
