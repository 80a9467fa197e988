"""Rollouts of the agent loops `compaction` and `sub_agent` pass the complete audit; altered ones do not."""

from __future__ import annotations

import copy
import json
from random import Random

import pyarrow.parquet as pq
import pytest
from altered_files import write
from loop_builders import call
from recorded_rollouts import audited, broken, reasons, saved_rollouts
from test_audit_own_loops import LIMITS, REPLIES, TEXTS

COMPACT = {"compaction": {"share": 0.15, "instruction": "Summarise."}}
AGENTS = {"sub_agent": {"tools": ["add"], "max_assistant_turns": 2}, "max_parallel_calls": 3}


def summing(context: str) -> str:
    if context.endswith("Summarise.<|im_end|>\n<|im_start|>assistant\n"):
        return "I know that 1 + 2 is 3"
    return "It is 3" if "1 + 2" in context else call("add", a=1, b=2)


def starting(context: str) -> str:
    if "Sub-task" in context.partition("<tool_call>\n{")[0]:
        return "It is 3" if "<tool_response>" in context else call("add", a=1, b=2)
    started = call("delegate", task="Sub-task 1") + call("add", a=1, b=1) + call("delegate", task="Sub-task 2")
    return "It is 3" if "<tool_response>" in context else started


CASES = {
    "compaction": ("compaction", summing, COMPACT),
    "no summary": ("compaction", lambda context: call("add", a=1, b=2), COMPACT),
    "thoughts dropped": (
        "compaction",
        lambda c: f"<think>\nx\n</think>\n\n{summing(c)}",
        {**COMPACT, "thinking": "strip"},
    ),
    "sub-agents": ("sub_agent", starting, AGENTS),
    "few calls": ("sub_agent", starting, {**AGENTS, "max_tool_calls": 4}),
    "short turns": ("sub_agent", starting, {**AGENTS, "sub_agent": {"max_turn_tokens": 3}}),
    "deeper": (
        "sub_agent",
        lambda c: call("delegate", task="more"),
        {"sub_agent": {"depth": 3}, "max_assistant_turns": 3},
    ),
    "thoughts of agents": (
        "sub_agent",
        lambda c: f"<think>\nx\n</think>\n\n{starting(c)}",
        {**AGENTS, "thinking": "strip"},
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("loop", "reply", "options"), CASES.values(), ids=CASES)
def test_long_tasks_pass_the_complete_audit(loop, reply, options, tmp_path):
    path = saved_rollouts(tmp_path, loop, reply, multi_turn=options)
    ledger = audited(path)
    assert broken(ledger) == {}
    unchecked = {name for name, found in ledger.findings.items() if found.status != "passed"}
    assert unchecked <= {"rescored", *(["answer tokens"] if "thinking" in options else [])}
    assert not TEXTS & reasons(ledger).keys()
    assert len(pq.read_table(path).to_pylist()[0]["trajectories"]) > (loop == "sub_agent" or reply is summing)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(42))
def test_anything_that_a_model_writes_in_long_tasks_passes_the_audit(seed, tmp_path):
    random = Random(seed)
    limits = {name: random.choice(values) for name, values in LIMITS.items()}
    loop = ["compaction", "sub_agent"][seed % 2]
    replies = [*REPLIES, *(call("delegate", task="Sub-task") * number for number in (1, 2)), *(call("delegate", x=1),)]
    sections = {
        "compaction": {"share": random.choice([0.1, 0.3, 0.6]), "max_compactions": random.choice([1, 3])},
        "sub_agent": {"depth": random.choice([1, 2]), "max_assistant_turns": random.choice([None, 1, 3])},
    }
    thinking = random.choice(["keep", "strip"])

    def reply(context):
        return Random(f"{seed} {context}").choice(replies)

    options = {**limits, loop: sections[loop], "thinking": thinking}
    assert broken(audited(saved_rollouts(tmp_path, loop, reply, multi_turn=options))) == {}


def alter(path, tmp_path, change):
    """The audit of a file in which `change` altered the first rollout, with valid seals."""
    table = pq.read_table(path)
    rows = copy.deepcopy(table.to_pylist())
    change(rows[0])
    write(table, rows, tmp_path / "step-000000.parquet", sealed=True)
    return broken(audited(tmp_path / "step-000000.parquet"))


def test_a_prompt_with_another_summary_is_found(tmp_path):
    def change(row):
        messages = json.loads(row["trajectories"][1]["messages"])
        messages[0]["content"] = messages[0]["content"].replace("is 3", "is 4")
        row["trajectories"][1]["messages"] = json.dumps(messages)

    found = alter(saved_rollouts(tmp_path, "compaction", summing, multi_turn=COMPACT), tmp_path, change)
    assert found["messages"] == "trajectories[1].messages"


def test_an_agent_with_another_task_is_found(tmp_path):
    def change(row):
        messages = json.loads(row["trajectories"][0]["messages"])
        messages[0]["content"] = "Sub-task 7"
        row["trajectories"][0]["messages"] = json.dumps(messages)

    found = alter(saved_rollouts(tmp_path, "sub_agent", starting, multi_turn=AGENTS), tmp_path, change)
    assert found["messages"] == "trajectories[0].messages[0]"


def test_a_result_that_is_not_the_agents_answer_is_found(tmp_path):
    def change(row):
        messages = json.loads(row["trajectories"][0]["messages"])
        messages[-1]["content"] = "It is 4"
        row["trajectories"][0]["messages"] = json.dumps(messages)

    found = alter(saved_rollouts(tmp_path, "sub_agent", starting, multi_turn=AGENTS), tmp_path, change)
    assert found["answers"].endswith(".result")
