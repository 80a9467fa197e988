"""Rows of task folders with the tools of a run: one sandbox per rollout, and its tests give the reward."""

from __future__ import annotations

import asyncio

import pytest
from fake_containers import FakeDaemon
from folder_builders import make_folder, make_steps
from local_sandboxes import require_bubblewrap
from tool_builders import call, task

from agentrl.config.reward import RewardConfig
from agentrl.errors import DataError
from agentrl.rewards.builtin.registry import verifier
from agentrl.rewards.loading import load_reward
from agentrl.sandboxes import running
from agentrl.sandboxes.docker.provider import ContainerProvider
from agentrl.sandboxes.process import ProcessSandbox
from agentrl.tools.base import InfraError
from agentrl.tools.loading import tools_of
from agentrl.tools.task_folders import task_folder_state
from agentrl.tools.toolbox import Toolbox
from agentrl.types.rollout import Outcome

LOCAL = "tools:\n- {name: bash, sandbox: local}\n- {name: read_file, sandbox: local}\n"


@pytest.fixture
def folder(tmp_path):
    require_bubblewrap()
    return make_folder(tmp_path / "task", dockerfile="FROM debian\nWORKDIR /app\nCOPY a .\n", a="x\n")


def row(folder, **fields):
    return task(data_source="task_folder", extra_info={"task_folder": str(folder)}, **fields)


def toolbox(tmp_path, text=LOCAL):
    (tmp_path / "tools.yaml").write_text(text)
    return Toolbox(tools_of(tmp_path / "tools.yaml"))


def rollout(box, folder, *calls):
    """(results of these calls, rewards) of one rollout."""

    async def run():
        try:
            async with box.session(row(folder)) as session:
                assert await session.start() == ""
                results = [await session.call(each) for each in calls]
            return results, session.rewards
        finally:
            await box.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_the_tests_of_the_folder_give_the_reward(tmp_path, folder):
    results, rewards = rollout(
        toolbox(tmp_path), folder, call("bash", command="cat a; echo 7 > n.txt"), call("read_file", path="n.txt")
    )
    assert [each.text for each in results] == ["x", "7\n"]
    assert rewards == {"verifier": 1.0}


@pytest.mark.slow
def test_a_rollout_without_a_call_is_verified_too(tmp_path, folder):
    assert rollout(toolbox(tmp_path), folder) == ([], {"verifier": 0.0})


@pytest.mark.slow
def test_other_rows_have_no_verifier(tmp_path):
    async def run():
        box = toolbox(tmp_path)
        async with box.session(task()) as session:
            await session.start()
            result = await session.call(call("bash", command="pwd; ls /tests"))
        await box.close()
        return result.text, session.rewards

    require_bubblewrap()
    text, rewards = asyncio.run(run())
    assert "/work" in text
    assert "cannot access '/tests'" in text
    assert rewards == {}


@pytest.mark.slow
def test_a_model_that_ends_its_sandbox_gets_the_reward_of_the_untouched_task(tmp_path, folder):
    """Otherwise a policy could learn to have its failures dropped."""
    results, rewards = rollout(
        toolbox(tmp_path), folder, call("bash", command="echo 7 > n.txt"), call("bash", command="kill -9 $PPID")
    )
    assert results[1].outcome is Outcome.TOOL_ERROR
    assert rewards == {"verifier": 0.0}
    results, rewards = rollout(
        toolbox(tmp_path), folder, call("bash", command="kill -9 $PPID"), call("bash", command="cat a; echo 7 > n.txt")
    )
    assert (results[1].text, rewards) == ("x", {"verifier": 1.0})  # the next sandbox has the files of the task, too


async def cancelled_after(seconds, work):
    """Cancel what runs, as the deadline of a rollout does."""
    calling = asyncio.ensure_future(work)
    await asyncio.sleep(seconds)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


@pytest.mark.slow
@pytest.mark.parametrize(
    "late", [call("bash", command="sleep 100"), call("python", code="import time; time.sleep(100)")]
)
def test_a_call_at_the_deadline_keeps_the_files_for_the_tests(tmp_path, folder, late):
    async def run():
        box = toolbox(tmp_path, LOCAL + "- {name: python, sandbox: local}\n")
        async with box.session(row(folder)) as session:
            await session.start()
            await session.call(call("bash", command="echo 7 > n.txt"))
            await cancelled_after(0.3, session.call(late))
        await box.close()
        return session.rewards

    assert asyncio.run(run()) == {"verifier": 1.0}


@pytest.mark.slow
def test_a_sandbox_that_agentrl_had_to_end_is_an_infrastructure_failure(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(running, "_STOP_S", 0.2)
    monkeypatch.setattr(ProcessSandbox, "stop_command", lambda self: None)

    async def run():
        box = toolbox(tmp_path)
        try:
            async with box.session(row(folder)) as session:
                await session.start()
                await session.call(call("bash", command="echo 7 > n.txt"))
                await cancelled_after(0.3, session.call(call("bash", command="sleep 100")))
        finally:
            await box.close()

    with pytest.raises(InfraError, match="was cancelled"):
        asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_tests_of_a_step_go_on_after_the_deadline(tmp_path, folder, goes_on):
    slow = "sleep 0.7; cat n.txt > /logs/verifier/reward.txt"
    steps = make_steps(tmp_path / "steps", "one", "two", **{"steps__one__tests__test.sh": slow})

    async def run():
        box = toolbox(tmp_path)
        session = box.session(row(steps))
        await session.start()
        await session.call(call("bash", command="echo 1 > n.txt"))
        await cancelled_after(0.3, task_folder_state(session.data).next_step())
        if goes_on:
            await session.finish()
        await session.__aexit__(None if goes_on else Exception, None, None)
        await box.close()
        return session.rewards, asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(run()) == ({"verifier": 1.0} if goes_on else {}, set())


@pytest.mark.slow
def test_tests_without_a_reward_are_an_infrastructure_failure(tmp_path, folder):
    (folder / "tests" / "test.sh").write_text("exit 0")
    with pytest.raises(InfraError, match="wrote no"):
        rollout(toolbox(tmp_path), folder, call("bash", command="true"))


def test_a_sandbox_that_dies_from_outside_is_an_infrastructure_failure(tmp_path, folder, monkeypatch):
    daemon = FakeDaemon(tmp_path / "daemon")
    monkeypatch.setenv("PATH", daemon.path)

    async def passed(self):
        daemon.fault("run", "says docker: Error response from daemon: no space left on device.")

    monkeypatch.setattr(ContainerProvider, "check", passed)
    (folder / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /app\n")
    box = toolbox(tmp_path, "tools:\n- {name: bash, sandbox: docker}\n")
    with pytest.raises(InfraError, match="no space left on device"):
        rollout(box, folder)


@pytest.mark.slow
def test_nothing_of_a_rollout_reaches_the_next_one(tmp_path, folder):
    async def run():
        box = toolbox(tmp_path)
        texts = []
        for _ in range(2):
            async with box.session(row(folder)) as session:
                await session.start()
                texts.append((await session.call(call("bash", command="ls; echo 7 > n.txt"))).text)
        await box.close()
        return texts

    assert asyncio.run(run()) == ["a", "a"]


def test_rows_are_checked_before_a_run(tmp_path, folder):
    box = toolbox(tmp_path)
    box.check(row(folder))
    (folder / "environment" / "Dockerfile").write_text("FROM debian\nRUN apt-get update\n")
    with pytest.raises(DataError, match=r"cannot run in a sandbox of kind 'local': .*'apt-get' needs an image"):
        toolbox(tmp_path).check(row(folder))
    with pytest.raises(DataError, match="does not exist"):
        box.check(row(tmp_path / "none"))
    with pytest.raises(DataError, match="expected the path of a folder"):
        box.check(task(extra_info={"task_folder": 3}))


def test_rows_need_exactly_one_sandbox(tmp_path, folder):
    two = "tools:\n- {name: bash, sandbox: local}\n- {name: python, sandbox: {kind: local, disk_mb: 32}}\n"
    with pytest.raises(DataError, match="must share one sandbox"):
        toolbox(tmp_path, two).check(row(folder))
    with pytest.raises(DataError, match="needs a tool with a sandbox"):
        Toolbox().check(row(folder))


def test_the_reward_by_data_source_is_that_of_the_tests():
    extra = {"rollout_reward_scores": {"verifier": 0.5, "other": 3.0}}
    assert asyncio.run(load_reward(RewardConfig())("task_folder", "", None, extra))["score"] == 0.5
    with pytest.raises(InfraError, match="no tests of a task folder"):
        verifier({"rollout_reward_scores": {}})
