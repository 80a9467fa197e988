"""Functions of harnesses that run commands in the sandbox of a task folder, here and in another interpreter."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from folder_builders import make_folder, make_steps
from harness_rolls import Rolls, check_tokens
from local_sandboxes import require_bubblewrap
from loop_builders import CHAT

from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import DataError
from agentrl.harness.run import HarnessRun
from agentrl.harness.settings import read_harness
from agentrl.tools.loading import tools_of
from agentrl.tools.task_folders import TaskFolderState
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

AGENT = Path(__file__).with_name("shell_agent.py")
PLACES = {"here": {}, "worker": {"python": sys.executable}}
SOLVED = ["pwd; cat a; echo err >&2; exit 3", "echo 7 > n.txt", "done"]


@pytest.fixture(params=PLACES)
def rolls(request, tmp_path):
    """Runs rollouts of functions of `shell_agent.py` on a task folder."""
    require_bubblewrap()
    (tmp_path / "tools.yaml").write_text("tools:\n- {name: bash, sandbox: local}\n")
    made = Rolls(tmp_path, lambda: tools_of(tmp_path / "tools.yaml"))
    folder = make_folder(tmp_path / "task", dockerfile="FROM debian\nWORKDIR /app\nCOPY a .\n", a="x\n")
    extra_info = {"task_folder": str(folder)}
    task = Task([{"role": "user", "content": "Go."}], data_source="task_folder", uid="t0", extra_info=extra_info)

    def roll(*replies, function="run", task=task, **options):
        return made(*replies, function=f"{AGENT}:{function}", task=task, **{**PLACES[request.param], **options})

    roll.made, roll.folder, roll.task = made, folder, task
    return roll


@pytest.mark.slow
@pytest.mark.parametrize("function", ["run", "threads"])
def test_commands_run_in_the_sandbox_of_the_task_and_its_tests_give_the_reward(rolls, function):
    (rollout,) = rolls(*SOLVED, function=function)
    assert (rollout.stop, rollout.error, rollout.tool_rewards) == (Stop.FINISHED, None, {"verifier": 1.0})
    check_tokens(rollout, rolls.made.engine)
    (trajectory,) = rollout.trajectories
    assert [segment.author.value for segment in trajectory.segments] == ["prompt", *["model", "user"] * 2, "model"]
    told = CHAT.text(trajectory.segments[2].token_ids)
    assert ("3 False " if function == "run" else "") + "/app\nx\nerr\n" in told


@pytest.mark.slow
def test_nothing_is_shared_between_rollouts(rolls):
    engine = ScriptedEngine(lambda text: SOLVED[1 + ("0 False" in text)], tokenizer=CHAT.tokenizer, of_text=True)
    rollouts = rolls(engine=engine, count=6)
    assert [rollout.tool_rewards for rollout in rollouts] == [{"verifier": 1.0}] * 6
    (rollout,) = rolls("ls", "done")
    assert rollout.tool_rewards == {"verifier": 0.0}


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_command_that_takes_too_long_is_ended(rolls):
    (rollout,) = rolls("echo 7 > n.txt; sleep 100", "done", function="run_shortly")
    assert rollout.tool_rewards == {"verifier": 1.0}
    assert "-9 True" in CHAT.text(rollout.trajectories[0].segments[2].token_ids)


@pytest.mark.slow
def test_commands_end_with_the_rollout_and_the_sandbox_keeps_its_files(rolls):
    (rolls.folder / "tests/test.sh").write_text("[ -e begun ] && echo 1 > /logs/verifier/reward.txt; ps ax >&2")
    (rollout,) = rolls("sleep", function="acts", deadline_s=3.0)
    assert (rollout.stop, rollout.tool_rewards) == (Stop.DEADLINE, {"verifier": 1.0})


@pytest.mark.slow
def test_a_command_nobody_waits_for_ends_with_the_function(rolls):
    (rollout,) = rolls("late", function="acts")
    assert rollout.tool_rewards == {"verifier": 0.0}


@pytest.mark.slow
def test_a_model_that_ends_its_sandbox_is_told_and_gets_the_untouched_task(rolls):
    (rollout,) = rolls("echo 7 > n.txt", "kill -9 $PPID", "done")
    assert "137 False" in CHAT.text(rollout.trajectories[0].segments[4].token_ids)
    assert (rollout.infra_failed, rollout.tool_rewards) == (False, {"verifier": 0.0})


@pytest.mark.slow
@pytest.mark.parametrize("when", ["running", "between"])
def test_a_sandbox_that_the_machine_kills_drops_the_rollout(rolls, monkeypatch, when):
    command = TaskFolderState.run_command

    async def killed(self, text, seconds):
        owned = self._pool._owned[self._owner]
        if text == "true":
            return await command(self, text, seconds)
        if when == "running":
            calling = asyncio.ensure_future(command(self, text, seconds))
            while not owned._using.locked():  # noqa: ASYNC110  # there is no event to wait for
                await asyncio.sleep(0.01)
        os.kill(owned._running.sandbox._process.pid, signal.SIGKILL)
        return await (calling if when == "running" else command(self, text, seconds))

    monkeypatch.setattr(TaskFolderState, "run_command", killed)
    (rollout,) = rolls("true", "sleep 50", "done")
    assert (rollout.stop, rollout.infra_failed, rollout.valid) == (Stop.ERROR, True, False)
    assert rollout.tool_rewards == {}


@pytest.mark.slow
def test_tests_without_a_reward_drop_the_rollout(rolls):
    (rolls.folder / "tests/test.sh").write_text("exit 0")
    (rollout,) = rolls("done")
    assert (rollout.infra_failed, rollout.tool_rewards) == (True, {})


def test_a_row_without_a_folder_has_no_commands(rolls):
    with pytest.raises(DataError, match=r"row 4 of 'sums': endpoint\.run_command needs a task folder"):
        rolls(*SOLVED, task=Task([{"role": "user", "content": "Go."}], data_source="sums", index=4, uid="t0"))


def test_a_command_of_a_harness_refuses_task_folders(rolls, tmp_path):
    (tmp_path / "command.yaml").write_text("command: [program]")
    with pytest.raises(DataError, match="only with `sandbox: task`"):
        HarnessRun(read_harness(str(tmp_path / "command.yaml"))).check(rolls.task)


def test_the_function_is_called_once_per_step(rolls, tmp_path):
    folder = make_steps(tmp_path / "steps", "one", "two")
    task = replace(rolls.task, extra_info={"task_folder": str(folder)})
    (rollout,) = rolls("echo 1 > n.txt", "done", "cat n.txt; echo 0 > n.txt", "done", task=task)
    assert (rollout.stop, rollout.tool_rewards) == (Stop.FINISHED, {"verifier": 0.5})
    first, second = rollout.trajectories
    assert "Go." in CHAT.text(first.segments[0].token_ids)
    assert "Do two." in CHAT.text(second.segments[0].token_ids)
    assert "1\n" in CHAT.text(second.segments[2].token_ids)


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_64_rollouts_work_at_once(rolls):
    engine = ScriptedEngine(lambda text: SOLVED[1 + ("0 False" in text)], tokenizer=CHAT.tokenizer, of_text=True)
    rollouts = rolls(engine=engine, count=64, function="run")
    assert [rollout.tool_rewards for rollout in rollouts] == [{"verifier": 1.0}] * 64
