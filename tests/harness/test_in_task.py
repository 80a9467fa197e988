"""Commands of harnesses that run in the sandbox of their task folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from folder_builders import make_folder, make_steps
from harness_rolls import Rolls, check_tokens
from linux_root import linux_root
from local_sandboxes import require_bubblewrap
from loop_builders import CHAT

from agentrl.config.run import RunConfig
from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import ConfigError, DataError
from agentrl.harness.in_task import TaskHarness
from agentrl.harness.settings import read_harness
from agentrl.rollouts.row_check import RowCheck
from agentrl.tools.loading import tools_of
from agentrl.tools.task_folders import TaskFolderState
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

FOLDER = Path(__file__).parent
COMMAND = ["python3", str(FOLDER / "shell_program.py")]
SEEN = "pwd; cat a; env | sort | grep -E 'HOME|^A=|SECRET'; ls -d /tests 2>/dev/null; exit 3"
SOLVED = [SEEN, "echo 7 > n.txt", "done"]
DOCKERFILE = "FROM debian\nENV A=b\nWORKDIR /app\nCOPY a .\n"


@pytest.fixture(params=["system", "root"])
def rolls(request, tmp_path, monkeypatch):
    """Runs rollouts of `shell_program.py` on a task folder, without and with a root."""
    require_bubblewrap()
    monkeypatch.setenv("SECRET", "of the run")
    root = f", root: {linux_root()}" if request.param == "root" else ""
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"tools:\n- {{name: bash, sandbox: {{kind: local, readonly: [{FOLDER}]{root}}}}}\n")
    made = Rolls(tmp_path, lambda: tools_of(tools))
    folder = make_folder(tmp_path / "task", dockerfile=DOCKERFILE, a="x\n")
    extra_info = {"task_folder": str(folder)}
    task = Task([{"role": "user", "content": "Go."}], data_source="task_folder", uid="t0", extra_info=extra_info)

    def roll(*replies, task=task, **options):
        return made(*replies, task=task, **{"command": COMMAND, "sandbox": "task", **options})

    roll.made, roll.folder, roll.task, roll.tools = made, folder, task, tools
    return roll


def told(rollout, number):
    return CHAT.text(rollout.trajectories[0].segments[number].token_ids)


def test_a_command_works_on_the_files_of_the_task_and_its_tests_give_the_reward(rolls):
    (rollout,) = rolls(*SOLVED)
    assert (rollout.stop, rollout.error, rollout.tool_rewards) == (Stop.FINISHED, None, {"verifier": 1.0})
    check_tokens(rollout, rolls.made.engine)
    assert "3 /app\nx\nA=b\nHOME=/tmp/home\n" in told(rollout, 2)
    assert rollout.facts["harness_exit_code"] == 0
    assert rollout.facts["harness_output"] == "home /tmp/home /app\n"
    assert rollout.facts["harness_requests"] == 3


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_nothing_is_shared_between_rollouts(rolls):
    engine = ScriptedEngine(lambda text: SOLVED[1 + ("0 " in text)], tokenizer=CHAT.tokenizer, of_text=True)
    rollouts = rolls(engine=engine, count=4)
    assert [rollout.tool_rewards for rollout in rollouts] == [{"verifier": 1.0}] * 4
    (rollout,) = rolls("ls", "done")
    assert rollout.tool_rewards == {"verifier": 0.0}


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_files_of_the_harness_are_in_its_home(rolls):
    (rollout,) = rolls("cat ~/.x/y; cat", "done", files={".x/y": "{base_url}"}, env={"CODE": "5"})
    assert "http://127.0.0.1:48620/" in told(rollout, 2)
    assert (rollout.stop, rollout.facts["harness_exit_code"]) == (Stop.FINISHED, 5)
    (rollout,) = rolls("echo 7 > n.txt", "done", env={"CODE": "5"}, on_exit="fail")
    assert (rollout.stop, rollout.valid) == (Stop.ERROR, False)


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_program_that_is_not_there_ends_the_run(rolls):
    with pytest.raises(ConfigError, match="cannot run '/none'"):
        rolls(command=["/none"])


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_deadline_stops_it_and_the_files_are_scored(rolls):
    (rollout,) = rolls("echo 7 > n.txt; nohup setsid sleep 500 & sleep 500", deadline_s=20.0)  # its start included
    assert (rollout.stop, rollout.tool_rewards) == (Stop.DEADLINE, {"verifier": 1.0})
    assert rollout.facts["harness_output"] == "home /tmp/home /app\n"


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_what_it_leaves_running_is_ended_before_the_tests(rolls):
    (rolls.folder / "tests/test.sh").write_text("ps ax | grep -c '[s]leep 5' > /logs/verifier/reward.txt")
    (rollout,) = rolls("setsid sleep 55 >/dev/null 2>&1 & disown", "done")
    assert rollout.tool_rewards == {"verifier": 0.0}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("forged", ['{"exit_code": 0}', '{"failed": "x", "missing": true}', "{" * 9999])
def test_it_cannot_write_its_own_report(rolls, forged):
    script = f"import os; os.write(1, b'\\n' + b'0' * 32 + b' ' + {forged!r}.encode()); os.kill(os.getppid(), 9)"
    (rollout,) = rolls(command=["python3", "-c", script])
    assert (rollout.stop, rollout.facts["harness_exit_code"]) == (Stop.ERROR, None)


@pytest.mark.slow
def test_a_command_that_ends_its_sandbox_is_scored_on_the_untouched_task(rolls):
    (rollout,) = rolls("echo 7 > n.txt", "kill -9 -1; kill -9 $(ps ax -o pid=)", "done")
    assert (rollout.infra_failed, rollout.tool_rewards) == (False, {"verifier": 0.0})


@pytest.mark.slow
def test_a_sandbox_that_the_machine_kills_drops_the_rollout(rolls, monkeypatch):
    upload = TaskFolderState.upload

    async def killed(self, path, data):
        await upload(self, path, data)
        process = self._pool._owned[self._owner]._running.sandbox._process
        asyncio.get_running_loop().call_later(2.0, os.kill, process.pid, signal.SIGKILL)

    monkeypatch.setattr(TaskFolderState, "upload", killed)
    (rollout,) = rolls("sleep 50", "done")
    assert (rollout.stop, rollout.infra_failed, rollout.valid) == (Stop.ERROR, True, False)
    assert rollout.tool_rewards == {}


def refusal(rolls, tmp_path, task=None, **settings):
    """Why a row is refused before a run."""
    file = tmp_path / "tested.yaml"
    file.write_text(json.dumps({"command": COMMAND, "sandbox": "task", **settings}))
    values = {"harness": str(file), "multi_turn": {"tool_config_path": str(rolls.tools)}}
    config = RunConfig.model_validate({"model": {"path": "none"}, "rollout": values})
    check = RowCheck(CHAT, load_toolbox(config.rollout.multi_turn), config, {})
    with pytest.raises(DataError) as caught:
        check.prompt_length(task or rolls.task)
    return str(caught.value)


def test_rows_that_do_not_fit_are_refused(rolls, tmp_path):
    assert "needs a task folder" in refusal(rolls, tmp_path, Task([{"role": "user", "content": "Go."}], uid="t0"))
    assert "only with `sandbox: task`" in refusal(rolls, tmp_path, sandbox=None)
    long = Task([{"role": "user", "content": "x" * 200_000}], uid="t0", extra_info=rolls.task.extra_info)
    assert "'command' of the harness has 200,000 bytes" in refusal(
        rolls, tmp_path, long, command=[*COMMAND, "{instruction}"]
    )
    rolls.tools.write_text("tools:\n- {name: bash, sandbox: docker}\n")
    assert "of kind 'docker'" in refusal(rolls, tmp_path)


@pytest.mark.parametrize("settings", [{"workdir": "x"}, {"sandbox": {"kind": "task", "root": "x"}}, {"disk_mb": 5}])
def test_settings_that_belong_to_the_tools_are_refused(tmp_path, settings):
    (tmp_path / "wrong.yaml").write_text(json.dumps({"command": ["x"], "sandbox": "task", **settings}))
    with pytest.raises(ConfigError, match=f"'{next(iter(settings))}"):
        read_harness(str(tmp_path / "wrong.yaml"))


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_an_instruction_of_a_megabyte_reaches_it(rolls):
    long = Task([{"role": "user", "content": "x" * 2**20}], uid="t0", extra_info=rolls.task.extra_info)
    script = "import sys; print(len(sys.stdin.read()))"
    (rollout,) = rolls(task=long, command=["python3", "-c", script], stdin="{instruction}")
    assert (rollout.stop, rollout.facts["harness_output"]) == (Stop.ERROR, "1048576\n")


@pytest.mark.slow
def test_the_command_runs_once_per_step(rolls, tmp_path):
    folder = make_steps(tmp_path / "steps", "one", "two")
    task = replace(rolls.task, extra_info={"task_folder": str(folder)})
    (rollout,) = rolls("echo 1 > n.txt", "done", "echo 0 > n.txt", "done", task=task, env={"CODE": "3"})
    assert (rollout.stop, rollout.tool_rewards) == (Stop.FINISHED, {"verifier": 0.5})
    assert ["Do two." in CHAT.text(each.segments[0].token_ids) for each in rollout.trajectories] == [False, True]


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_32_rollouts_work_at_once(rolls):
    engine = ScriptedEngine(lambda text: SOLVED[1 + ("0 " in text)], tokenizer=CHAT.tokenizer, of_text=True)
    rollouts = rolls(engine=engine, count=32)
    assert [rollout.tool_rewards for rollout in rollouts] == [{"verifier": 1.0}] * 32


TWICE = '[ -e /tmp/second ] && code=0 || code=3; touch /tmp/second; "$@"; exit $code'
ONCE = '[ -e /tmp/second ] && exit 0; touch /tmp/second; "$@"'


def in_steps(rolls, tmp_path, *replies, test="cat n.txt 2>/dev/null || echo 0", **options):
    """The rollout of a task with two steps."""
    folder = make_steps(tmp_path / "steps", "one", "two", **{"tests__test.sh": f"({test}) > /logs/verifier/reward.txt"})
    (rollout,) = rolls(*replies, task=replace(rolls.task, extra_info={"task_folder": str(folder)}), **options)
    return rollout


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_model_that_locks_its_working_folder_ends_its_rollout_only(rolls, tmp_path):
    rollout = in_steps(rolls, tmp_path, "chmod 000 /app", "done")
    assert (rollout.stop, rollout.tool_rewards) == (Stop.FINISHED, {"verifier": 0.0})
    rollout = in_steps(rolls, tmp_path, "chmod 000 /app", "done", on_exit="fail")
    assert (rollout.stop, rollout.infra_failed) == (Stop.ERROR, False)
    assert "did not start: Permission denied: /app" in rollout.error


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("script", "code", "num_turns"), [(TWICE, 3, 4), (ONCE, 0, 2)])
def test_the_first_problem_of_all_steps_counts(rolls, tmp_path, script, code, num_turns):
    replies, command = ["echo 1 > n.txt", "done"] * (num_turns // 2), ["bash", "-c", script, "-", *COMMAND]
    rollout = in_steps(rolls, tmp_path, *replies, command=command)
    assert (rollout.stop, rollout.tool_rewards) == (Stop.FINISHED, {"verifier": 1.0})
    assert (rollout.facts["harness_exit_code"], len(rollout.trajectories)) == (code, num_turns // 2)
    assert rollout.facts["harness_output"] == "home /tmp/home /app\n" * (num_turns // 2)
    rollout = in_steps(rolls, tmp_path, *replies, command=command, on_exit="fail")
    assert (rollout.stop, len(rollout.trajectories)) == (Stop.ERROR, 1)


def slow(*_):
    """Do not end before the deadline."""
    return asyncio.sleep(60)


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("late", [(TaskFolderState, "next_step"), (TaskHarness, "end")])
def test_turns_are_kept_at_the_deadline_of_the_rollout(rolls, tmp_path, monkeypatch, late):
    monkeypatch.setattr(*late, slow)
    last = "done" if late[1] == "next_step" else "sleep 50"
    rollout = in_steps(rolls, tmp_path, "echo 1 > n.txt", last, multi_turn={"rollout_timeout_s": 12.0})
    assert (rollout.stop, rollout.tool_rewards) == (Stop.DEADLINE, {"verifier": 1.0})
    assert sum(each.num_turns for each in rollout.trajectories) == 2


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_the_start_is_part_of_the_deadline(rolls, monkeypatch):
    monkeypatch.setattr(TaskFolderState, "upload", slow)
    (rollout,) = rolls("done", deadline_s=0.3)
    assert (rollout.stop, rollout.trajectories) == (Stop.DEADLINE, [])
    assert rollout.facts["harness_duration_s"] < 15
