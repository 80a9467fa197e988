"""E2B sandboxes when the service, the network or the code fails: the real client against `e2b_server`."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from e2b.retry import AsyncRetryableTransport
from e2b_server import KEY, Fault, e2b_server
from sandbox_kinds import provider_of

from agentrl.errors import ConfigError
from agentrl.sandboxes import SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.base import SandboxFileError
from agentrl.sandboxes.e2b import provider as provider_module
from agentrl.sandboxes.e2b import sandbox as sandbox_module
from agentrl.sandboxes.owner import own_name

NOW = {"Retry-After": "0"}
LONG_S = 30.0


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("E2B_API_KEY", KEY)
    with e2b_server(tmp_path) as running:
        yield running


def provider(server, **settings):
    return provider_of("e2b", api_url=server.url, sandbox_url=server.url, **settings)


def in_new(server, work, **settings):
    """Run `work` in a new sandbox whose interpreter has started."""

    async def run():
        started = provider(server, **settings)
        sandbox = await started.start()
        try:
            await sandbox.run_python("x = 1", LONG_S)
            return await work(sandbox)
        finally:
            await sandbox.kill()
            await started.close()

    return asyncio.run(run())


CALLS = {
    "run_python": (lambda sandbox: sandbox.run_python("print(1)\nx", LONG_S), "execute"),
    "run_command": (lambda sandbox: sandbox.run_command("echo 1", LONG_S), "process"),
    "upload": (lambda sandbox: sandbox.upload("a", b"1"), "write"),
    "download": (lambda sandbox: sandbox.download("a"), "read"),
}


def test_a_sandbox_is_started_as_configured(server, monkeypatch):
    monkeypatch.setenv("E2B_DEBUG", "true")  # with it, the library starts and ends nothing

    async def run():
        sandbox = await provider(server, template="mine", lifetime_s=77).start()
        await sandbox.kill()
        await sandbox.kill()

    asyncio.run(run())
    (body,) = server.bodies
    assert (body["templateID"], body["timeout"], body["allow_internet_access"]) == ("mine", 77, False)
    assert body["metadata"]["agentrl_owner"] == own_name()
    assert (len(server.ended), server.requests["kill"]) == (1, 1)


def test_a_repeated_start_makes_one_sandbox(server):
    """The service started it, but its answer was lost, twice."""
    server.fail("create", Fault(502, NOW, after=True), Fault(502, NOW, after=True))
    asyncio.run(provider(server).start())
    assert (server.requests["create"], len(server.machines)) == (3, 1)


def test_the_wait_that_a_busy_service_names_is_kept(server, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setitem(AsyncRetryableTransport.__init__.__kwdefaults__, "sleep", sleep)
    server.fail("create", Fault(429, {"Retry-After": "7"}), Fault(503, {"Retry-After": "9"}))
    asyncio.run(provider(server).start())
    assert waited == [7.0, 9.0]


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_stays_busy_is_unavailable(server, status):
    server.fail("create", *[Fault(status, NOW)] * (provider_module.RETRIES + 1))
    with pytest.raises(SandboxUnavailableError, match=f"{status}"):
        asyncio.run(provider(server).start())
    assert server.requests["list"] == 0  # it started nothing, so there is nothing to end


def test_a_failed_start_leaves_no_sandbox(server):
    async def run():
        starting = provider(server)
        with pytest.raises(SandboxUnavailableError, match="500"):
            await starting.start()
        await asyncio.gather(*starting._tasks)

    server.fail("create", Fault(500, after=True))
    asyncio.run(run())
    assert (len(server.ended), server.machines) == (1, {})


def test_a_cancelled_start_leaves_no_sandbox(server):
    async def run():
        starting = provider(server)
        start = asyncio.ensure_future(starting.start())
        await asyncio.to_thread(server.wait_for, "create")
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert server.machines == {}  # the service has not finished
        server.release()
        await asyncio.gather(*starting._tasks)

    server.fail("create", Fault(wait=True))
    asyncio.run(run())
    assert (len(server.ended), server.machines) == (1, {})


def test_a_start_that_hangs_is_given_up(server, monkeypatch):
    monkeypatch.setattr(provider_module, "START_S", 0.1)
    server.fail("create", Fault(hang=True))
    with pytest.raises(SandboxUnavailableError, match="started no sandbox"):
        asyncio.run(provider(server).start())


def test_the_check_names_a_missing_or_wrong_key(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "e2b_wrong")
    with pytest.raises(ConfigError, match="refuses the key in MY_KEY"):
        asyncio.run(provider(server, api_key_env="MY_KEY").check())
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="set MY_KEY"):
        asyncio.run(provider(server, api_key_env="MY_KEY").check())


@pytest.mark.slow
def test_the_check_names_a_service_that_cannot_be_reached(server, monkeypatch):
    monkeypatch.setattr(provider_module, "START_S", 1.0)
    with pytest.raises(ConfigError, match="the E2B service cannot be used"):
        asyncio.run(provider_of("e2b", api_url="http://127.0.0.1:9", sandbox_url=server.url).check())


def test_more_sandboxes_than_connections_are_refused(server):
    with pytest.raises(ConfigError, match="E2B_MAX_CONNECTIONS"):
        asyncio.run(provider(server, max_running=10_000).check())


def test_a_key_in_a_file_is_refused():
    with pytest.raises(ValueError, match="set the environment variable E2B_API_KEY"):
        provider_of("e2b", api_key="e2b_secret")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "e2b_code_interpreter", None)
    for module in ("provider", "sandbox"):
        monkeypatch.delitem(sys.modules, f"agentrl.sandboxes.e2b.{module}")
    with pytest.raises(ConfigError, match=r"pip install 'agentrl-train\[e2b\]'"):
        provider_of("e2b")


@pytest.mark.slow
def test_the_check_ends_the_sandboxes_of_killed_processes_alone(server):
    """A process starts a sandbox and is killed; another process, and another machine, have one too."""
    code = (
        "import asyncio, os, sys; sys.path.insert(0, sys.argv[1]); from sandbox_kinds import provider_of\n"
        "provider = provider_of('e2b', api_url=sys.argv[2], sandbox_url=sys.argv[2])\n"
        "asyncio.run(provider.start()); os.kill(os.getpid(), 9)"
    )
    folder = str(__file__).rpartition("/")[0]
    ended = subprocess.run([sys.executable, "-c", code, folder, server.url], check=False)
    assert ended.returncode == -9
    (orphan,) = server.machines

    async def run():
        mine = await provider(server).start()
        other = await provider(server).start()
        server.machines[other.id].metadata["agentrl_owner"] = "f" * 32 + "x1-1-1"
        await provider(server).check()
        return {mine.id, other.id}

    assert asyncio.run(run()) == set(server.machines)
    assert server.ended == [orphan]


def test_at_the_end_all_sandboxes_of_this_process_are_ended(server):
    """More than the service lists at a time."""

    async def run():
        starting = provider(server)
        sandboxes = await asyncio.gather(*(starting.start() for _ in range(5)))
        server.machines[sandboxes[0].id].metadata["agentrl_owner"] = "another"
        await starting.close()
        return sandboxes[0].id

    assert [asyncio.run(run())] == [*server.machines]
    assert len(server.ended) == 4


def test_a_sandbox_that_cannot_be_ended_is_ended_at_the_end_of_the_run(server, caplog):
    async def run():
        starting = provider(server)
        sandbox = await starting.start()
        server.fail("kill", Fault(500))
        await sandbox.kill()
        assert len(server.machines) == 1
        await starting.close()

    asyncio.run(run())
    assert server.machines == {}
    assert "could not be ended yet" in caplog.text


@pytest.mark.parametrize("name", ["run_python", "run_command"])
def test_code_that_ends_the_sandbox_did_so(server, name):
    call, operation = CALLS[name]

    async def run(sandbox):
        server.fail(operation, Fault(die=True))
        with pytest.raises(SandboxEndedError, match="while this ran"):
            await call(sandbox)

    in_new(server, run)


@pytest.mark.parametrize("name", ["upload", "download"])
def test_a_sandbox_that_the_service_ended_is_unavailable(server, name):
    call, _ = CALLS[name]

    async def run(sandbox):
        await provider_module.CodeInterpreter.kill(sandbox.id, api_key=KEY, api_url=server.url)
        with pytest.raises(SandboxUnavailableError, match="the service ended"):
            await call(sandbox)

    in_new(server, run)


def test_a_sandbox_at_the_end_of_its_lifetime_is_unavailable(server):
    async def run(sandbox):
        sandbox._started -= 100
        server.fail("execute", Fault(502))
        with pytest.raises(SandboxUnavailableError, match="`lifetime_s` of 60"):
            await CALLS["run_python"][0](sandbox)

    in_new(server, run, lifetime_s=60)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("status", [401, 429, 502])
@pytest.mark.parametrize("name", CALLS)
def test_a_proxy_that_fails_is_unavailable(server, name, status):
    """The sandbox itself runs, so the code did not end it."""
    call, operation = CALLS[name]

    async def run(sandbox):
        server.fail(operation, Fault(status))
        with pytest.raises(SandboxUnavailableError):
            await call(sandbox)

    in_new(server, run)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("run_python", Fault(drop=True)),
        ("run_python", Fault(early=True)),
        ("run_python", Fault(body="")),
        ("run_python", Fault(body='{"type": "number_of_executions", "execution_count": 1}\n')),
        ("run_python", Fault(body='{"type": "stdout"}\n')),
        ("run_python", Fault(body="nonsense\n")),
        ("run_python", Fault(body="[]\n")),
        ("run_python", Fault(body='{"type": "stdout", "text": 3, "timestamp": 0}\n')),
        ("run_command", Fault(early=True)),
    ],
)
def test_an_answer_that_is_not_complete_is_no_success(server, name, fault):
    call, operation = CALLS[name]

    async def run(sandbox):
        server.fail(operation, fault)
        with pytest.raises(SandboxUnavailableError):
            await call(sandbox)

    in_new(server, run)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["for _ in range(200): print('y' * 100_000)", "'y' * 20_000_000"])
def test_code_that_writes_without_end_is_stopped(server, code):
    """Also if it is one line, which the library would collect."""

    async def run(sandbox):
        return await sandbox.run_python(code, LONG_S), await sandbox.run_python("'next'", LONG_S)

    stopped, after = in_new(server, run)
    assert "so the program was stopped" in stopped.error
    assert (after.output, after.error) == ("next\n", "")


@pytest.mark.slow
def test_code_whose_answer_hangs_is_timed_out_and_gets_a_new_interpreter(server, monkeypatch):
    monkeypatch.setattr(sandbox_module, "LOOK_S", 0.2)

    async def run(sandbox):
        server.fail("execute", Fault(hang=True), Fault(hang=True))
        stopped = await sandbox.run_python("1", 0.2)
        return stopped, await sandbox.run_python("'x' in vars()", LONG_S)

    stopped, after = in_new(server, run)
    assert (stopped.timed_out, stopped.state_lost, after.output) == (True, True, "False\n")


@pytest.mark.slow
def test_code_that_ignores_the_interrupt_gets_a_new_interpreter(server, monkeypatch):
    monkeypatch.setattr(sandbox_module, "LOOK_S", 0.5)

    async def run(sandbox):
        stopped = await sandbox.run_python("import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass", 0.3)
        return stopped, await sandbox.run_python("'x' in vars()", LONG_S)

    stopped, after = in_new(server, run)
    assert (stopped.timed_out, stopped.state_lost, after.output) == (True, True, "False\n")


def test_a_command_whose_answer_hangs_is_timed_out(server, monkeypatch):
    monkeypatch.setattr(sandbox_module, "GRACE_S", 0.1)

    async def run(sandbox):
        server.fail("process", Fault(hang=True))
        return await sandbox.run_command("true", 0.1)

    assert in_new(server, run).timed_out


@pytest.mark.slow
def test_a_service_that_hangs_everywhere_is_unavailable(server, monkeypatch):
    for name in ("LOOK_S", "FILE_S", "CONTEXT_S", "KILL_S"):
        monkeypatch.setattr(sandbox_module, name, 0.1)

    async def run():
        sandbox = await provider(server).start()
        for operation in ("context", "execute", "info", "read", "write", "kill"):
            server.fail(operation, *[Fault(hang=True)] * 5)
        for name in ("run_python", "upload", "download"):
            with pytest.raises(SandboxUnavailableError):
                await CALLS[name][0](sandbox)
        await sandbox.kill()

    asyncio.run(run())


def test_an_interpreter_that_cannot_start_is_unavailable(server):
    async def run():
        sandbox = await provider(server).start()
        server.fail("context", Fault(500))
        with pytest.raises(SandboxUnavailableError, match="500"):
            await sandbox.run_python("1", LONG_S)

    asyncio.run(run())


def test_text_that_the_service_cannot_take_is_a_mistake_of_the_model(server):
    async def run(sandbox):
        with pytest.raises(SandboxFileError):
            await sandbox.download("\ud800")
        return [
            await sandbox.run_python("'\ud800'", LONG_S),
            await sandbox.run_command("echo \ud800", LONG_S),
            await sandbox.run_command("echo \0", LONG_S),
            await sandbox.run_command("echo " + "x" * 140_000, LONG_S),
        ]

    python, bash, null, long = in_new(server, run)
    assert (python.output, bash.output) == ("?\n", "?\n")
    assert all("write it to a file" in result.error for result in (null, long))


def test_colors_of_a_traceback_are_removed(server):
    async def run(sandbox):
        return await sandbox.run_python("1 / 0", LONG_S)

    error = in_new(server, run).error
    assert "\x1b" not in error
    assert error.endswith("\nZeroDivisionError: division by zero")
