"""Containers of the stand-in for docker; `pytest -m containers` runs the first part with docker and podman."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest
from fake_containers import SETTINGS, FakeDaemon, in_container

from agentrl.errors import ConfigError
from agentrl.sandboxes import owner
from agentrl.sandboxes.base import SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.docker import client, provider
from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.sandboxes.docker.settings import DockerSandbox
from agentrl.sandboxes.loading import pool_of


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    found = FakeDaemon(tmp_path / "daemon")
    monkeypatch.setenv("PATH", found.path)
    return found


PODMAN = pytest.param("podman", marks=pytest.mark.slow)
REAL = [pytest.param(f"real {name}", marks=pytest.mark.containers) for name in SETTINGS]


@pytest.fixture(params=["docker", PODMAN, *REAL])
def kind(request, tmp_path, monkeypatch):
    if request.param in SETTINGS:
        monkeypatch.setenv("PATH", FakeDaemon(tmp_path / "daemon").path)
    return request.param.removeprefix("real ")


def check(**settings):
    asyncio.run(ContainerProvider(DockerSandbox(**settings)).check())


# ---- what every command must do, besides the contract of sandboxes --------------------------------------------------


def test_the_first_process_waits_for_all_that_end(kind):
    async def run(sandbox):
        await sandbox.run_command("for i in 1 2 3; do (sleep 0.01 &) ; done; sleep 0.3", 20)
        return await sandbox.run_command("cat /proc/[0-9]*/stat | grep -c ' Z '", 20)

    assert in_container(run, kind).output == "0\n"


def test_code_that_kills_the_program_ends_the_container(kind):
    async def run(sandbox):
        with pytest.raises(SandboxEndedError, match="the sandbox ended"):
            await sandbox.run_python("import os, signal; os.kill(os.getppid(), signal.SIGKILL)", 20)
        with pytest.raises(SandboxEndedError):
            await sandbox.run_python("1", 20)

    in_container(run, kind)


def test_the_program_cannot_be_read_by_the_code(kind):
    async def run(sandbox):
        return await sandbox.run_python("import os\nopen(f'/proc/{os.getppid()}/mem')", 20)

    assert "PermissionError" in in_container(run, kind).error


@pytest.mark.slow
def test_the_check_passes_and_leaves_nothing(kind):
    async def run():
        made = ContainerProvider(SETTINGS[kind]())
        await made.check()
        return await made._client.succeed(*provider._LIST, "label=agentrl.owner")

    assert owner.own_name() not in asyncio.run(run())


# ---- what the command is given --------------------------------------------------------------------------------------


def test_the_container_is_isolated_and_limited(daemon):
    async def run(sandbox):
        (container,) = daemon.containers().values()
        return container["options"]

    options = in_container(run, memory_mb=300, cpus=0.5, max_processes=20, disk_mb=8, user="7:8", network="none")
    expected = {
        "--network": ["none"],
        "--user": ["7:8"],
        "--cap-drop": ["ALL"],
        "--security-opt": ["no-new-privileges"],
        "--memory": ["300m"],
        "--memory-swap": ["300m"],
        "--cpus": ["0.5"],
        "--pids-limit": ["20"],
        "--pull": ["never"],
        "--label": [f"agentrl.owner={owner.own_name()}"],
        "--log-driver": ["none"],
    }
    assert {name: options[name] for name in expected} == expected
    assert {"--read-only", "--rm", "--interactive"} <= options.keys()
    assert options["--tmpfs"] == [f"{path}:rw,exec,nosuid,nodev,size=8m,mode=1777" for path in ("/work", "/tmp")]


def test_secrets_of_the_run_are_not_in_the_container(daemon, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy")
    monkeypatch.setenv("AGENTRL_SECRET", "a-secret-value")

    async def run(sandbox):
        return await sandbox.run_command("cat /proc/*/environ | tr '\\0' '\\n'; env", 20)

    output = in_container(run).output
    assert "HTTPS_PROXY=\n" in output
    assert "password" not in output
    assert "a-secret-value" not in output


@pytest.mark.slow
def test_the_name_of_a_kind_makes_a_pool(daemon):
    async def run():
        pool = pool_of({"kind": "podman", "image": "python:3.12-slim", "memory_mb": 200})
        async with await pool.of("a") as sandbox:
            found = await sandbox.run_python("6 * 7", 20)
        pool.release("a")
        await pool.close()
        return found.output, daemon.containers()

    assert asyncio.run(run()) == ("42\n", {})


# ---- checks before the first container ------------------------------------------------------------------------------


def test_a_missing_command_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the command 'docker' is not installed"):
        check()


def test_a_daemon_that_does_not_run_is_named(daemon):
    daemon.fault("daemon", "dead")
    with pytest.raises(ConfigError, match=r"'docker ps' failed: Cannot connect to the Docker daemon"):
        check()


def test_a_daemon_that_hangs_is_named(daemon, monkeypatch):
    monkeypatch.setattr(client, "COMMAND_S", 0.5)
    daemon.fault("daemon", "hang")
    with pytest.raises(ConfigError, match=r"'docker ps' did not end within 0.5 seconds"):
        check()


def test_a_missing_image_is_pulled(daemon, caplog):
    daemon.images()
    check(image="python:3.12-slim")
    assert daemon.calls("pull") == [["--quiet", "python:3.12-slim"]]
    assert "pulling the image python:3.12-slim with docker" in caplog.text


def test_an_image_that_cannot_be_pulled_is_named(daemon):
    with pytest.raises(ConfigError, match=r"'docker pull' failed: .*access denied for private/image"):
        check(image="private/image")


def test_what_the_daemon_does_not_limit_is_named(daemon):
    daemon.fault("limits", "ignored")
    with pytest.raises(ConfigError, match=r"docker sandboxes are not .*memory is limited; the number of processes"):
        check()


def test_an_option_that_the_command_does_not_know_is_named(daemon):
    daemon.fault("run", "says unknown flag: --pull")
    with pytest.raises(ConfigError, match=r"a sandbox did not start: unknown flag: --pull"):
        check()


# ---- failures of the daemon are not the model's ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_start_that_fails_says_why(daemon):
    daemon.fault("run", "says docker: Error response from daemon: no space left on device.")
    with pytest.raises(SandboxUnavailableError, match="no space left on device"):
        in_container(None)


@pytest.mark.slow
def test_a_start_that_hangs_is_given_up_and_removed(daemon, monkeypatch):
    monkeypatch.setattr(provider, "START_S", 0.5)
    daemon.fault("run", "hang")
    with pytest.raises(SandboxUnavailableError, match="was not ready in time"):
        in_container(None)
    assert len(daemon.calls("rm")) == 1


def test_a_command_that_loses_the_daemon_is_unavailable(daemon):
    async def run(sandbox):
        call = asyncio.create_task(sandbox.run_python("while True: pass", 60))
        await sandbox_is_asked(sandbox)
        daemon.signal("client", signal.SIGUSR1)
        with pytest.raises(SandboxUnavailableError, match=r"docker failed .* error waiting for container"):
            await call

    in_container(run)


async def sandbox_is_asked(sandbox):
    while not sandbox._asking.locked():  # noqa: ASYNC110  (the call runs in another task)
        await asyncio.sleep(0)


def test_a_container_killed_from_outside_has_ended(daemon):
    async def run(sandbox):
        call = asyncio.create_task(sandbox.run_python("while True: pass", 60))
        await sandbox_is_asked(sandbox)
        daemon.signal("pid", signal.SIGKILL)
        with pytest.raises(SandboxEndedError, match=r"exit code 137 \(killed, for example at its memory limit\)"):
            await call

    in_container(run)


@pytest.mark.slow
@pytest.mark.parametrize("daemon_answers", [True, False])
def test_a_container_that_does_not_answer_is_removed(daemon, monkeypatch, daemon_answers):
    monkeypatch.setattr("agentrl.sandboxes.process.GRACE_S", 0.2)
    monkeypatch.setattr(provider, "EXIT_S", 0.1)

    async def run(sandbox):
        if not daemon_answers:
            daemon.fault("rm", "dead")
        error = SandboxEndedError if daemon_answers else SandboxUnavailableError
        with pytest.raises(error, match=r"did not answer and was killed|does not answer"):
            await sandbox.run_python("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", 0.3)
        left = len(daemon.containers())
        daemon.works()
        return left

    assert in_container(run) == (0 if daemon_answers else 1)
    assert daemon.containers() == {}  # `close` removes what could not be removed before


def test_a_cancelled_call_removes_the_container(daemon):
    async def run(sandbox):
        call = asyncio.create_task(sandbox.run_python("while True: pass", 60))
        await sandbox_is_asked(sandbox)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return daemon.containers()

    assert in_container(run) == {}


# ---- containers of runs that were killed ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_container_ends_with_the_run_that_is_killed(daemon):
    program = (
        "import asyncio, os, signal\n"
        "from agentrl.sandboxes.docker.provider import ContainerProvider\n"
        "from agentrl.sandboxes.docker.settings import DockerSandbox\n"
        "async def main():\n"
        "    sandbox = await ContainerProvider(DockerSandbox()).start()\n"
        f"    print(os.listdir({str(daemon.folder / 'containers')!r}), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert (killed.returncode, killed.stdout[:10]) == (-signal.SIGKILL, "['agentrl-")
    assert gone(daemon)


def gone(daemon) -> bool:
    """Wait until there is no container."""
    end, give_up = threading.Event(), time.monotonic() + 60
    while daemon.containers():
        assert time.monotonic() < give_up
        end.wait(0.05)
    return True


@pytest.mark.slow
def test_containers_that_killed_runs_left_are_removed_at_the_next_start(daemon, monkeypatch, caplog):
    ended = subprocess.Popen(["sleep", "100"])
    names = {"ended": f"{owner.place()}-{ended.pid}-{owner._started(ended.pid)}", "elsewhere": "another-1-2"}
    ended.kill()
    ended.wait()

    async def run(own):
        others = {}
        for name, label in names.items():
            monkeypatch.setattr(client, "own_name", lambda label=label: label)
            others[name] = await ContainerProvider(DockerSandbox()).start()
        monkeypatch.undo()
        monkeypatch.setenv("PATH", daemon.path)
        await ContainerProvider(DockerSandbox()).check()
        left = daemon.containers()
        await others["elsewhere"].kill()
        return own._name in left, others["ended"]._name in left, others["elsewhere"]._name in left

    assert in_container(run) == (True, False, True)
    assert "removing 1 containers of runs that were killed" in caplog.text
