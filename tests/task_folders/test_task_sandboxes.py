"""What every kind of sandbox does for task folders: files, environment, tests and rewards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager

import pytest
from e2b_server import KEY, e2b_server
from e2b_system import SystemMachine
from fake_containers import FakeDaemon
from folder_builders import SEVEN, make_folder
from linux_root import linux_root
from local_sandboxes import require_bubblewrap

from agentrl.sandboxes.base import SandboxEndedError, SandboxUnavailableError
from agentrl.sandboxes.loading import pool_of
from agentrl.task_folders import VerifierError, read_task_folder, score_of, task_sandbox, verify

KINDS = ("local", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("local root", "docker", "e2b")))
IMAGE = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY files/ /app/\n"
LONG_S = 30.0


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch) -> Iterator[str]:
    require_bubblewrap()
    if request.param == "docker":
        monkeypatch.setenv("PATH", FakeDaemon(tmp_path / "daemon").path)
    if request.param == "e2b":
        with e2b_server(tmp_path / "e2b", SystemMachine) as server:
            values = {"E2B_API_KEY": KEY, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
            for name, value in values.items():
                monkeypatch.setenv(name, value)
            yield request.param
        return
    yield request.param


def sandboxes(kind: str) -> object:
    return {"kind": "local", "root": str(linux_root())} if kind == "local root" else kind


@pytest.fixture
def folder(tmp_path):
    """A task whose folder /app has a file."""
    return make_folder(tmp_path / "task", dockerfile=IMAGE, files__a__b="x\n")


@asynccontextmanager
async def opened(folder, kind):
    pool = pool_of(sandboxes(kind))
    task = read_task_folder(folder)
    try:
        async with task_sandbox(task, pool) as sandbox:
            yield sandbox, task
    finally:
        await pool.close()


def rewards_after(folder, kind, *commands):
    """(outputs of the commands, rewards of the tests after them)."""

    async def run():
        async with opened(folder, kind) as (sandbox, task):
            outputs = [(await sandbox.run_command(each, LONG_S)).output for each in commands]
            return outputs, await verify(sandbox, task)

    return asyncio.run(run())


def failure_of(folder, kind, *commands) -> str:
    with pytest.raises(VerifierError) as caught:
        rewards_after(folder, kind, *commands)
    return str(caught.value)


def with_test(folder, test: str):
    (folder / "tests" / "test.sh").write_text(test)
    return folder


def test_the_reward_follows_from_the_files_that_the_agent_left(folder, kind):
    seen = "pwd; cat a/b; ls /tests 2>/dev/null; ls /logs/verifier"
    outputs, rewards = rewards_after(folder, kind, seen, "echo 7 > n.txt")
    assert (outputs, rewards) == (["/app\nx\n", ""], {"reward": 1.0})
    assert rewards_after(folder, kind, "echo 8 > n.txt")[1] == {"reward": 0.0}
    assert rewards_after(folder, kind)[1] == {"reward": 0.0}


@pytest.mark.slow
def test_environment_variables_reach_agent_and_tests(folder, kind):
    text = '[environment]\nenv = {A = "a b"}\n[verifier]\nenv = {B = "c \'d"}\n'
    (folder / "task.toml").write_text(text)
    with_test(folder, '[ "$A$B" = "a bc \'d" ] && echo 1 > /logs/verifier/reward.txt')
    outputs, rewards = rewards_after(folder, kind, 'echo "$A$B"')
    assert (outputs, rewards) == (["a b\n"], {"reward": 1.0})


@pytest.mark.slow
def test_tests_run_in_the_working_folder_with_all_files_of_the_tests(folder, kind):
    (folder / "tests" / "data").mkdir()
    (folder / "tests" / "data" / "0.5").write_text("")
    with_test(folder, "ls /tests/data > /logs/verifier/reward.txt; [ $(pwd) = /app ] || rm /logs/verifier/*; exit 3")
    assert rewards_after(folder, kind)[1] == {"reward": 0.5}  # the exit code is not the reward


@pytest.mark.slow
def test_an_agent_cannot_write_its_own_reward(folder, kind):
    """Files that were there before, links in their place, and processes that go on."""
    forged = (
        "cd /logs/verifier; mkdir -p x /tests; echo 1 | tee reward.txt > reward.json",
        "cd /tests; echo 'echo 1 > /logs/verifier/reward.txt' > test.sh; ln -s /app data; chmod 000 /logs/verifier/x",
        "rm -rf /logs/verifier; ln -s /app /logs/verifier; chmod 500 /logs; chmod 000 /tests",
        "nohup setsid bash -c 'while true; do echo 1 > /logs/verifier/reward.json; sleep 0.01; done' >/dev/null 2>&1 &",
    )
    with_test(folder, "sleep 0.2; ls /tests > /app/seen; echo 0 > /logs/verifier/reward.txt")
    assert rewards_after(folder, kind, *forged)[1] == {"reward": 0.0}


@pytest.mark.slow
def test_a_working_folder_that_was_replaced(folder, kind):
    (folder / "environment" / "Dockerfile").write_text(IMAGE + "WORKDIR /app/src\n")
    replace = "rm -rf /app/src && mkdir /app/src && echo 7 > /app/n.txt"
    outputs, rewards = rewards_after(folder, kind, replace, "pwd; echo x > y; cat /app/src/y")
    assert (outputs[1], rewards) == ("/app/src\nx\n", {"reward": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "rewards"),
    [
        ("echo ' 0.25 ' > reward.txt", {"reward": 0.25}),
        ("echo -1e-3 > reward.txt", {"reward": -0.001}),
        ("""echo '{"a": 1, "b": 0.5}' > reward.json; echo 0 > reward.txt""", {"a": 1.0, "b": 0.5}),
        ("""echo '{"a": true, "b": false}' > reward.json""", {"a": 1.0, "b": 0.0}),
    ],
)
def test_rewards(folder, test, rewards):
    require_bubblewrap()
    assert rewards_after(with_test(folder, f"cd /logs/verifier; {test}"), "local")[1] == rewards


def test_the_score_of_several_rewards():
    assert score_of({"reward": 0.25, "other": 1.0}) == 0.25
    assert score_of({"passed": 0.75}) == 0.75
    assert score_of({"a": 1.0, "b": 0.5}) == 0.75


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("echo said; exit 7", r"wrote no .*exit code 7, output: said"),
        ("touch reward.txt", "wrong reward.txt: the file is empty"),
        ("echo nan > reward.txt", "found 'nan'"),
        ("echo inf > reward.txt", "found 'inf'"),
        ("echo yes > reward.txt", "found 'yes'"),
        ("head -c 100000 /dev/zero > reward.txt", "it has 100000 bytes"),
        ("touch reward.json; echo 1 > reward.txt", "wrong reward.json: the file is empty"),
        ("echo '{}' > reward.json", "an object of numbers"),
        ("echo '[1]' > reward.json", "an object of numbers"),
        ("""echo '{"a": "1"}' > reward.json""", "'a' is not a number"),
        ("""echo '{"a": NaN}' > reward.json""", "'a' is not finite"),
        ("""echo '{"a": 1e999}' > reward.json""", "'a' is not finite"),
        ("python3 -c 'print(chr(91) * 99999)' > reward.json", "wrong reward.json"),
        ("mkdir reward.txt", "wrote no"),
        ("ln -s /dev/zero reward.txt", "wrote no"),
        ("yes | head -c 3000000; exit 1", "wrote no"),
        ("kill -9 $$", "wrote no"),
        ("kill -9 $PPID", "the sandbox ended"),
    ],
)
def test_no_reward_is_a_failure_of_the_infrastructure(folder, test, why):
    require_bubblewrap()
    with pytest.raises(VerifierError, match=why):
        rewards_after(with_test(folder, f"cd /logs/verifier; {test}"), "local")


@pytest.mark.slow
def test_tests_that_hang_are_stopped(folder, kind):
    (folder / "task.toml").write_text("[verifier]\ntimeout_sec = 0.5\n")
    with_test(folder, "echo 1 > /logs/verifier/reward.txt; sleep 1000")
    started = time.monotonic()
    assert "did not end in 0.5 seconds" in failure_of(folder, kind)
    assert time.monotonic() - started < 20


def test_a_sandbox_that_the_agent_ended(folder, kind):
    if kind == "e2b":
        pytest.skip("a command cannot end a virtual machine like this")

    async def run():
        async with opened(folder, kind) as (sandbox, task):
            with pytest.raises(SandboxEndedError):
                await sandbox.run_command("kill -9 $PPID", LONG_S)
            with pytest.raises(SandboxEndedError):
                await verify(sandbox, task)

    asyncio.run(run())


def test_tests_that_disappear_during_a_run(folder):
    async def run():
        async with opened(folder, "local") as (sandbox, task):
            (folder / "tests" / "test.sh").unlink()
            (folder / "tests" / "test.sh").symlink_to("/etc/passwd")
            await verify(sandbox, task)

    require_bubblewrap()
    with pytest.raises(VerifierError, match="neither a file nor a folder"):
        asyncio.run(run())


@pytest.mark.slow
def test_commands_of_the_dockerfile_run_in_order_before_the_agent(tmp_path):
    require_bubblewrap()
    lines = "FROM ubuntu:24.04\nENV X=1\nWORKDIR /srv/x\nCOPY a .\nRUN mkdir /data && cp a /data/$X\nCOPY a /data/2\n"
    lines += "RUN cat /data/2 >> a"
    folder = make_folder(tmp_path, dockerfile=lines, a="1\n", test=SEVEN)
    outputs, _ = rewards_after(folder, "local", "pwd; ls /data; cat a; echo $X $HOME; touch /data/y /root/z")
    assert outputs == ["/srv/x\n1\n2\n1\n1\n1 /root\n"]


@pytest.mark.slow
def test_a_root_that_can_be_written_runs_what_changes_the_system(tmp_path):
    lines = "FROM debian\nCOPY a /etc/a\nCOPY a /usr/bin/new\nCOPY a /\nWORKDIR /usr/src\n"
    lines += "RUN mkdir /usr/x && cp /a /usr/x\n"
    folder = make_folder(tmp_path, dockerfile=lines, a="1\n", test="cat /etc/a > /logs/verifier/reward.txt")
    seen = "pwd; cat /etc/a /usr/bin/new /a /usr/x/a; echo $HOME; rm -r /var; echo 0.5 > /etc/a"
    outputs, rewards = rewards_after(folder, "local root", seen)
    assert (outputs, rewards) == (["/usr/src\n1\n1\n1\n1\n/root\n"], {"reward": 0.5})
    assert not (linux_root() / "etc/a").exists()


def test_a_command_that_fails_is_named(tmp_path):
    require_bubblewrap()
    folder = make_folder(tmp_path / "bad", dockerfile="FROM debian\nRUN mkdir /usr/x\n")
    with pytest.raises(
        SandboxUnavailableError, match=r"RUN mkdir /usr/x of 'bad' failed: exit code 1: mkdir: .*/usr/x"
    ):
        rewards_after(folder, "local")


@pytest.mark.slow
def test_an_image_is_built_once_and_only_if_its_files_change(folder, tmp_path, monkeypatch):
    daemon = FakeDaemon(tmp_path / "daemon")
    monkeypatch.setenv("PATH", daemon.path)
    for _ in range(2):
        rewards_after(folder, "docker")
    assert len(daemon.calls("build")) == 1
    (folder / "environment" / "files" / "new").write_text("")
    assert rewards_after(folder, "docker", "ls")[0] == ["a\nnew\n"]
    assert len(daemon.calls("build")) == 2


@pytest.mark.slow
def test_an_image_that_cannot_be_built_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", FakeDaemon(tmp_path / "daemon").path)
    folder = make_folder(tmp_path / "bad", dockerfile="FROM debian\nRUN false\n")
    with pytest.raises(SandboxUnavailableError, match=r"'docker build' failed: .* exit code: 1"):
        rewards_after(folder, "docker")
