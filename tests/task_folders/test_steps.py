"""Tasks of several steps: their files, tests and rewards, and the loops that do them."""

from __future__ import annotations

import asyncio
import json

import pytest
from folder_builders import make_steps
from linux_root import linux_root
from local_sandboxes import require_bubblewrap
from loop_builders import CHAT, ListEngine, call, runner

from agentrl.config.run import RunConfig
from agentrl.data.task_folders.folder import TaskFolderError, read_task_folder
from agentrl.data.task_folders.rows import TaskFolderRows
from agentrl.engines.base import SamplingParams
from agentrl.errors import DataError
from agentrl.rollouts.row_check import RowNames
from agentrl.sandboxes.base import SandboxUnavailableError
from agentrl.sandboxes.loading import pool_of
from agentrl.task_folders import NotRunnableError, TaskSteps, VerifierError, content_of, plan
from agentrl.task_folders import steps as steps_module
from agentrl.task_folders.steps import combined, ends_task
from agentrl.tools.loading import tools_of
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.operation import OperationKind
from agentrl.types.rollout import Stop
from agentrl.types.task import Task

LONG_S = 30.0
FILL = "echo 1 > n.txt; for i in 1 2 3; do head -c 40000000 /dev/zero > {}/$i; done 2>/dev/null; true"
"""Does a step, and fills a file system."""


def done(folder, *commands, sandbox="local"):
    """(instructions after each step, outputs, rewards): one command in each step."""
    require_bubblewrap()

    async def run():
        pool, task = pool_of(sandbox), read_task_folder(folder)
        planned = plan(task, pool.settings)
        steps, content, told, said = TaskSteps(task, planned.setup.folder), content_of(planned), [], []
        content = type(content)(content.setup, steps.filling(content.fill))
        try:
            async with pool.borrowed(content) as owned, owned as opened:
                for command in commands:
                    said.append((await opened.run_command(command, LONG_S)).output)
                    told.append(await steps.next(opened))
                return told, said, await steps.rewards(opened)
        finally:
            await pool.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_step_begins_where_the_one_before_ended_without_its_tests(tmp_path):
    files = {
        "steps__two__workdir__setup.sh": "echo ready > state; pwd >> state",
        "steps__two__workdir__in__b": "b\n",
        "steps__two__tests__test.sh": "cat /tests/shared /tests/own; echo 1 > /logs/verifier/reward.txt",
        "steps__two__tests__own": "",
        "tests__shared": "",
    }
    folder = make_steps(tmp_path, "one", "two", **files)
    seen = "cat n.txt state in/b; ls /tests /logs/verifier /logs/agent"
    told, said, rewards = done(folder, "echo 0.5 > n.txt; touch /logs/agent/x; setsid sleep 99 &", seen)
    assert (told, rewards) == (["Do two.", None], {"reward": 0.75})
    assert said[1] == "0.5\nready\n/app\nb\n/logs/agent:\n\n/logs/verifier:\n\n/tests:\n"


@pytest.mark.slow
def test_the_same_on_a_root(tmp_path):
    folder = make_steps(tmp_path, "one", "two")
    local = {"kind": "local", "root": str(linux_root())}
    assert done(folder, "echo 1 > n.txt", "echo 0 > n.txt", sandbox=local)[2] == {"reward": 0.5}


@pytest.mark.slow
def test_steps_that_the_model_did_not_reach_are_scored_as_they_are(tmp_path):
    folder = make_steps(tmp_path, "one", "two", "three")
    (folder / "steps/three/tests").mkdir()
    (folder / "steps/three/tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt")
    assert done(folder, "echo 1 > n.txt") == (["Do two."], [""], {"reward": 2 / 3})


@pytest.mark.slow
def test_a_reward_below_the_least_ends_the_task(tmp_path):
    folder = make_steps(tmp_path, "one", "two", options="min_reward = 0.5\n")
    assert done(folder, "echo 0.4 > n.txt") == ([None], [""], {"reward": 0.4})
    assert done(folder, "echo 0.5 > n.txt")[0] == ["Do two."]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "reward"), [("mean", 1 / 3), ("final", 0.0)])
def test_steps_after_a_setup_that_fails_count_as_0(tmp_path, strategy, reward):
    """Otherwise a model could gain by breaking the setup of a difficult step."""
    settings = f'multi_step_reward_strategy = "{strategy}"\n'
    folder = make_steps(tmp_path, "one", "two", "three", settings=settings, steps__two__workdir__x="")
    (folder / "steps/two/workdir/setup.sh").write_text("exit 1")
    assert done(folder, "echo 1 > n.txt") == ([None], [""], {"reward": reward})


def test_a_first_setup_that_fails_is_a_failure_of_the_infrastructure(tmp_path):
    folder = make_steps(tmp_path, "one", "two", steps__one__workdir__x="")
    (folder / "steps/one/workdir/setup.sh").write_text("exit 1")
    with pytest.raises(SandboxUnavailableError, match="exit code 1"):
        done(folder, "true")


@pytest.mark.slow
def test_a_step_whose_setup_needs_the_files_of_a_sandbox_that_the_model_ended_counts_as_0(tmp_path):
    folder = make_steps(tmp_path / "task", "one", "two", **{"steps__two__workdir__setup.sh": "cat n.txt"})
    replies = bash("echo 1 > n.txt"), "done", bash("kill -9 $PPID"), bash("echo 1 > n.txt"), "done"
    assert rollout(tmp_path, folder, *replies).tool_rewards == {"verifier": 0.5}


@pytest.mark.slow
def test_the_files_of_a_step_are_copied_although_the_model_filled_its_folder(tmp_path):
    folder = make_steps(tmp_path / "task", "one", "two", steps__two__workdir__b="b\n")
    assert done(folder, FILL.format("/tmp"), "cat b")[1:] == (["", "b\n"], {"reward": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("steps", [("one",), ("one", "two")])
def test_a_model_that_leaves_no_room_gets_the_reward_of_the_untouched_task(tmp_path, steps):
    """Otherwise a policy could learn to have its failures dropped."""
    large = {f"steps__{name}__{part}__large": "x" * 2**20 for name in ("one", "two") for part in ("tests", "workdir")}
    test = "r=$(cat n.txt) || r=0.25; echo $r > /logs/verifier/reward.txt"
    folder = make_steps(tmp_path / "task", *steps, **large, **{"tests__test.sh": test})
    replies = [bash(FILL.format("")), *["done"] * len(steps)]
    found = rollout(tmp_path, folder, *replies, sandbox={"kind": "local", "root": str(linux_root())})
    assert (found.stop, found.tool_rewards) == (Stop.FINISHED, {"verifier": 0.25})


@pytest.mark.slow
def test_a_sandbox_that_ends_while_a_step_is_prepared_scores_no_step_unseen(tmp_path, monkeypatch):
    test = "r=$(cat n.txt) || r=0; echo $r > /logs/verifier/reward.txt"
    folder = make_steps(tmp_path / "task", "one", "two", **{"tests__test.sh": test})

    async def ends(sandbox, *folders):
        ended.append(await sandbox.kill())
        monkeypatch.setattr(steps_module, "empty", empty)  # the next sandbox does not end
        await empty(sandbox, *folders)

    empty, ended = steps_module.empty, []
    monkeypatch.setattr(steps_module, "empty", ends)
    found = rollout(tmp_path, folder, bash("echo 1 > n.txt"), "done", "done")
    assert (len(ended), found.infra_failed, found.tool_rewards) == (1, True, {})


@pytest.mark.slow
def test_a_step_without_a_reward_is_a_failure_of_the_infrastructure(tmp_path):
    folder = make_steps(tmp_path, "one", "two")
    with pytest.raises(VerifierError, match=r"step two' wrote a wrong reward\.txt"):
        done(folder, "echo 1 > n.txt", "echo x > n.txt")


def test_rewards_are_combined_by_name(tmp_path):
    task = read_task_folder(make_steps(tmp_path / "mean", "one", "two"))
    assert combined(task, [{"a": 1.0}, {"a": 0.5, "b": 1.0}]) == {"a": 0.75, "b": 0.5}
    final = read_task_folder(make_steps(tmp_path / "final", "one", settings='multi_step_reward_strategy = "final"\n'))
    assert combined(final, [{"a": 1.0}, {"b": 0.5}]) == {"b": 0.5}


@pytest.mark.parametrize(
    ("least", "rewards", "ends"),
    [
        ("0.5", {"reward": 0.5}, False),
        ("0.5", {"other": 1.0}, True),
        ("{a = 0.5, b = 0}", {"a": 0.5, "b": 0.0}, False),
        ("{a = 0.5, b = 0}", {"a": 0.5}, True),
    ],
)
def test_limits_of_rewards(tmp_path, least, rewards, ends):
    (step,) = read_task_folder(make_steps(tmp_path, "one", options=f"min_reward = {least}\n")).steps
    assert ends_task(step, rewards) is ends


@pytest.mark.parametrize("name", ["..", "a/b", "con", "a.", " ", "/etc", "x\\u0000", "a" * 256])
def test_names_that_are_no_folder_are_refused(tmp_path, name):
    folder = make_steps(tmp_path, "one")
    (folder / "task.toml").write_text(f'[[steps]]\nname = "{name}"\n')
    with pytest.raises(TaskFolderError, match="not a portable folder name"):
        read_task_folder(folder)


def test_everything_that_is_missing_is_named(tmp_path):
    folder = make_steps(tmp_path, "one", "two", "Two", "three")
    (folder / "tests/test.sh").unlink()
    (folder / "steps/two/instruction.md").unlink()
    (folder / "steps/three").rename(folder / "elsewhere")
    (folder / "steps/three").symlink_to(folder / "elsewhere")
    with pytest.raises(TaskFolderError) as caught:
        read_task_folder(folder)
    found = "\n".join(caught.value.problems)
    for expected in ("'Two' occurs twice", "'steps/three' is a link", "steps/two/instruction.md: does not exist"):
        assert expected in found
    assert found.count("tests/test.sh'") >= 2


@pytest.mark.parametrize("inside", ["steps/one/workdir", "steps/one/workdir/x", "steps/one/tests", "tests/x"])
def test_links_to_files_of_this_machine_are_refused(tmp_path, inside):
    folder = make_steps(tmp_path, "one")
    (folder / inside).parent.mkdir(parents=True, exist_ok=True)
    (folder / inside).symlink_to("/etc")
    with pytest.raises(NotRunnableError, match="link"):
        plan(read_task_folder(folder), pool_of("local").settings)


def test_settings_of_steps_that_are_not_supported_are_named(tmp_path):
    options = '[steps.verifier]\nuser = "me"\nenv = {A = "${B}"}\n[steps.healthcheck]\ncommand = "true"\n'
    with pytest.raises(NotRunnableError) as caught:
        plan(read_task_folder(make_steps(tmp_path, "one", options=options)), pool_of("local").settings)
    found = "\n".join(caught.value.reasons)
    assert all(f"'steps.0.{key}'" in found for key in ("verifier.user", "verifier.env", "healthcheck"))


def rollout(tmp_path, folder, *replies, sandbox="local", **multi_turn):
    """A rollout of `tool_agent` on the row of a folder."""
    require_bubblewrap()
    (tmp_path / "tools.yaml").write_text(f"tools:\n- {{name: bash, sandbox: {json.dumps(sandbox)}}}\n")
    (row,) = TaskFolderRows(str(folder))
    task = Task(
        [{"role": "user", "content": row["prompt"]}], data_source="task_folder", uid="t", extra_info=row["extra_info"]
    )
    rollouts = {"multi_turn": multi_turn, "agent": {"default_agent_loop": "tool_agent"}}
    config = RunConfig.model_validate(
        {"model": {"path": "none"}, "data": {"max_response_length": 2000}, "rollout": rollouts}
    )
    engine = ListEngine(*replies)

    async def run():
        made = runner(engine, config, tools=tools_of(tmp_path / "tools.yaml"))
        try:
            return await made.run(task, SamplingParams(), seed=0)
        finally:
            await made.close()
            await made._toolbox.close()

    return asyncio.run(run())


def bash(command):
    return call("bash", command=command)


@pytest.mark.slow
def test_the_next_instruction_follows_in_the_conversation(tmp_path):
    folder = make_steps(tmp_path / "task", "one", "two")
    replies = bash("echo 0.5 > n.txt"), "done one", bash("cat n.txt; echo 1 > n.txt"), "done two"
    found = rollout(tmp_path, folder, *replies)
    assert (found.stop, found.tool_rewards) == (Stop.FINISHED, {"verifier": 0.75})
    (trajectory,) = found.trajectories
    authors = [segment.author.value for segment in trajectory.segments]
    assert authors == ["prompt", "model", "tool", "model", "user", "model", "tool", "model"]
    assert "Do one." in CHAT.text(trajectory.segments[0].token_ids)
    assert "Do two." in CHAT.text(trajectory.segments[4].token_ids)
    assert "0.5" in CHAT.text(trajectory.segments[6].token_ids)
    assert OperationKind.SAY in [each.kind for each in found.operations]


def test_loops_that_ask_for_no_further_step_are_refused(tmp_path):
    (tmp_path / "tools.yaml").write_text("tools:\n- {name: bash, sandbox: local}\n")
    (row,) = TaskFolderRows(str(make_steps(tmp_path / "task", "one", "two")))
    task = Task([{"role": "user", "content": row["prompt"]}], extra_info=row["extra_info"])
    for loop in ("compaction", "tool_agent", "react_agent"):
        values = {
            "multi_turn": {"tool_config_path": str(tmp_path / "tools.yaml")},
            "agent": {"default_agent_loop": loop},
        }
        config = RunConfig.model_validate({"model": {"path": "none"}, "rollout": values})
        check = RowNames(load_toolbox(config.rollout.multi_turn), config)
        if loop == "compaction":
            with pytest.raises(DataError, match="several steps"):
                check.check(task)
        else:
            check.check(task)


def test_a_limit_ends_all_steps_and_the_others_are_scored(tmp_path):
    folder = make_steps(tmp_path / "task", "one", "two")
    found = rollout(tmp_path, folder, bash("echo 1 > n.txt"), "done", max_assistant_turns=2)
    assert (found.stop, found.tool_rewards) == (Stop.MAX_ASSISTANT_TURNS, {"verifier": 1.0})


@pytest.mark.slow
def test_a_sandbox_that_the_model_ended_has_the_files_of_its_step(tmp_path):
    folder = make_steps(tmp_path / "task", "one", "two", steps__two__workdir__b="b\n")
    replies = bash("echo 1 > n.txt"), "done", bash("kill -9 $PPID"), bash("cat b; ls; echo 0 > n.txt"), "done"
    found = rollout(tmp_path, folder, *replies)
    assert found.tool_rewards == {"verifier": 0.5}
    assert "b\nb\n" in CHAT.text(found.trajectories[0].segments[8].token_ids)
