"""Complete runs whose rollouts are a program: audited, equal bit by bit, and killed without a trace."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: the value of any key

import pytest
import yaml
from babbling import FORMAT, babble_is_known  # noqa: F401  # the second a fixture
from folder_builders import make_folder, make_steps
from harness_builders import new_mark, processes
from local_sandboxes import require_bubblewrap
from same_run import differences
from warm_agentrl import agentrl

from agentrl.audit.auditor import Auditor
from agentrl.config import validate_config
from agentrl.store import TrajectoryStore
from agentrl.telemetry.jsonl import read_metrics
from agentrl.trainer.builders.rollouts import UserObjects
from agentrl.trainer.run import run_training
from agentrl.types.rollout import Stop
from agentrl.types.trajectory import Author
from agentrl.utils.shipped import shipped

PROGRAM = Path(__file__).parents[1] / "harness/patient_program.py"
FUNCTION = PROGRAM.with_name("patient_function.py")
WORKER = {"command": [], "function": f"{FUNCTION}:run", "python": sys.executable}
LOGGED = """
case $(cat log 2>/dev/null | wc -c) in 0) r=0;; *[02468]) r=0.5;; *) r=1;; esac
echo $r > /logs/verifier/reward.txt
"""
REWARD = """
from zlib import crc32

def compute_score(data_source, solution_str, ground_truth, extra_info):
    assert extra_info["harness_exit_code"] in (0, 5, None)
    return crc32(solution_str.encode()) % 5 / 4
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def configuration(task_folder: Path, folder: Path, run: Path, **harness: object) -> dict[str, Any]:
    (folder / "reward.py").write_text(REWARD)
    settings = {"command": [sys.executable, str(PROGRAM), run.name], **harness}
    (folder / "tested.yaml").write_text(json.dumps(settings))
    return {
        "model": {"path": str(task_folder / "model")},
        "data": {
            "train_files": [str(task_folder / "train.jsonl")],
            "train_max_samples": 4,
            "train_batch_size": 2,
            "max_prompt_length": 600,
            "max_response_length": 240,
        },
        "rollout": {
            "n": 3,
            "deterministic": True,
            "max_num_seqs": 8,
            "harness": str(folder / "tested.yaml"),
            "multi_turn": {"format": FORMAT, "max_turn_tokens": 24, "max_assistant_turns": 7},
        },
        "actor": {"optim": {"lr": 1e-3}},
        "reward": {"custom_reward_function": {"path": folder / "reward.py"}},
        "trainer": {"default_local_dir": run, "total_training_steps": 1, "logger": ["jsonl"]},
    }


def train(task_folder: Path, folder: Path, run: Path, **harness: object) -> None:
    run_training(validate_config(configuration(task_folder, folder, run, **harness)), UserObjects())


def check_audit(run: Path) -> None:
    ledger = Auditor(folder=run).audit(sorted((run / "trajectories").rglob("*.parquet")))
    assert {name: finding.problems for name, finding in ledger.findings.items() if finding.num_problems} == {}


def test_a_run_of_a_program_trains_and_passes_the_audit(task_folder, tmp_path):
    run = tmp_path / "run"
    train(task_folder, tmp_path, run)
    rollouts = [stored.rollout for stored in TrajectoryStore(run / "trajectories/train").scan()]
    assert len(rollouts) == 6
    assert {rollout.stop for rollout in rollouts} <= {Stop.FINISHED, Stop.MAX_ASSISTANT_TURNS}
    authors = {segment.author for each in rollouts for part in each.trajectories for segment in part.segments}
    assert {Author.PROMPT, Author.MODEL, Author.TOOL} <= authors
    check_audit(run)
    (metrics,) = read_metrics(run / "metrics.jsonl")
    assert metrics["harness/requests/mean"] >= 1
    assert metrics["harness/failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, {"sandbox": "local"}, {"network": "gateway", "max_running": 2}])
def test_runs_of_a_program_are_equal_bit_by_bit(task_folder, tmp_path, place):
    if "sandbox" in place:
        place = {**place, "command": ["python3", "-c", PROGRAM.read_text()]}
    for name in ("one", "other"):
        train(task_folder, tmp_path, tmp_path / name, **place)
    assert differences(tmp_path / "one", tmp_path / "other") == []


def train_on_folders(task_folder: Path, folder: Path, run: Path, **harness: object) -> None:
    """Train a function that works on task folders."""
    require_bubblewrap()
    values = configuration(task_folder, folder, run, **{**WORKER, **harness})
    for number in range(4):
        make_folder(folder / f"tasks/t{number}", instruction=f"Look {number} times.", test=LOGGED)
    values["data"]["train_files"] = [str(folder / "tasks")]
    values["rollout"]["multi_turn"]["tool_config_path"] = str(shipped("configs/tool_config/task_folders.yaml"))
    run_training(validate_config({**values, "reward": {}}), UserObjects())


@pytest.mark.slow
def test_a_run_on_task_folders_trains_and_passes_the_audit(task_folder, tmp_path):
    train_on_folders(task_folder, tmp_path, tmp_path / "run")
    rollouts = [stored.rollout for stored in TrajectoryStore(tmp_path / "run/trajectories/train").scan()]
    assert len(rollouts) == 6
    assert all(rollout.rewards["score"] == rollout.tool_rewards["verifier"] for rollout in rollouts)
    called = [any(part.author is Author.TOOL for part in each.trajectories[0].segments) for each in rollouts]
    assert any(called)
    assert [rollout.reward > 0 for rollout in rollouts] == called
    check_audit(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", [{}, {"python": None}, {"max_running": 2}])
def test_runs_on_task_folders_are_equal_bit_by_bit(task_folder, tmp_path, place):
    for name in ("one", "other"):
        train_on_folders(task_folder, tmp_path, tmp_path / name, **place)
    assert differences(tmp_path / "one", tmp_path / "other") == []


@pytest.mark.slow
def test_runs_in_the_sandbox_of_tasks_of_two_steps_are_equal_bit_by_bit(task_folder, tmp_path):
    require_bubblewrap()
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"tools:\n- {{name: bash, sandbox: {{kind: local, readonly: [{PROGRAM.parent}]}}}}\n")
    test = "case $(cat code) in *5) r=0;; *0) r=1;; *) r=0.5;; esac\necho $r > /logs/verifier/reward.txt\n"
    for number in range(4):
        make_steps(tmp_path / f"tasks/t{number}", f"look{number}", "again", **{"tests__test.sh": test})
    command = ["bash", "-c", f"python3 {PROGRAM}; code=$?; echo $code >> code; exit $code"]
    for name in ("one", "other"):
        values = configuration(task_folder, tmp_path, tmp_path / name, command=command, sandbox="task")
        values["data"]["train_files"] = [str(tmp_path / "tasks")]
        values["rollout"]["multi_turn"]["tool_config_path"] = str(tools)
        run_training(validate_config({**values, "reward": {}}), UserObjects())
    assert differences(tmp_path / "one", tmp_path / "other") == []
    rollouts = [stored.rollout for stored in TrajectoryStore(tmp_path / "one/trajectories/train").scan()]
    assert {rollout.facts["harness_exit_code"] for rollout in rollouts} <= {0, 5, None}
    assert all("done" in str(rollout.facts["harness_output"]) for rollout in rollouts if rollout.stop is Stop.FINISHED)
    assert 2 in {len(rollout.trajectories) for rollout in rollouts}
    assert all(rollout.reward == rollout.tool_rewards["verifier"] for rollout in rollouts)
    check_audit(tmp_path / "one")


LANGGRAPH = """
import os
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

@tool
def waits(number: int) -> str:
    "Look."
    return str(number * 7)

@tool
def blocks(number: int) -> str:
    "Look."
    return str(number * 3)

tools = {each.name: each for each in (waits, blocks)}
model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([*tools.values()])

def act(state):
    calls = state["messages"][-1].tool_calls
    answers = [ToolMessage(tools[each["name"]].invoke(each["args"]), tool_call_id=each["id"]) for each in calls]
    return {"messages": answers}

graph = StateGraph(MessagesState)
graph.add_node("think", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("act", act)
graph.add_edge(START, "think")
graph.add_conditional_edges("think", lambda state: "act" if state["messages"][-1].tool_calls else END)
graph.add_edge("act", "think")
graph.compile().invoke({"messages": [("user", os.environ["AGENTRL_INSTRUCTION"])]})
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_langgraph_program_trains_for_ten_steps(task_folder, tmp_path, peer_python):
    (tmp_path / "agent.py").write_text(LANGGRAPH)
    run = tmp_path / "run"
    harness = yaml.safe_load(shipped("configs/harness/langgraph.yaml").read_text())
    harness["command"] = [str(peer_python("langgraph")), str(tmp_path / "agent.py")]
    harness["readonly"] = [str(peer_python("langgraph").parents[1])]
    values = configuration(task_folder, tmp_path, run, **harness)
    values["data"] |= {"train_batch_size": 1}
    values["rollout"] |= {"n": 2}
    values["trainer"] |= {"total_training_steps": 10}
    values["reward"] = {"name": "exact_match"}
    run_training(validate_config(values), UserObjects())
    rollouts = [stored.rollout for stored in TrajectoryStore(run / "trajectories/train").scan()]
    assert len(rollouts) == 20
    turns = [(len(rollout.trajectories), sum(each.num_turns for each in rollout.trajectories)) for rollout in rollouts]
    assert {trajectories for trajectories, _ in turns} == {1}
    assert max(turns for _, turns in turns) > 1
    check_audit(run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["command", "worker"])
def test_a_killed_run_leaves_no_harness(task_folder, tmp_path, kind):
    mark = new_mark()
    command = ["bash", "-c", f"echo started; (setsid bash -c 'sleep 1000; :' {mark} &); sleep 1001; :", mark]
    harness = {"command": command} if kind == "command" else {**WORKER, "function": f"{FUNCTION}:stays"}
    settings = configuration(task_folder, tmp_path, tmp_path / "run", **harness)
    if kind == "worker":
        (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "{mark}"}}\n' * 4)
        settings["data"]["train_files"] = [str(tmp_path / "rows.jsonl")]
    (tmp_path / "run.yaml").write_text(json.dumps(settings, default=str).replace(FORMAT, "hermes"))
    line = [*agentrl(), "train", "--config", str(tmp_path / "run.yaml")]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as run:
        try:
            # more commands do not start before these have asked
            until(lambda: len([*processes(mark)]) >= {"command": 2 * 4, "worker": 6}[kind])
        finally:
            run.kill()
    until(lambda: not [*processes(mark)])
