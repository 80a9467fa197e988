"""Rollouts of tasks of several steps: the next instruction is a user message in the conversation of a built-in loop."""

from __future__ import annotations

from collections import defaultdict

import pyarrow.parquet as pq
import pytest
from altered_files import write
from loop_builders import call
from recorded_rollouts import audited, broken, saved_rollouts

from agentrl.agent_loops import tool
from agentrl.data.task_folders.rows import FOLDER_KEY

NEXT = "Add once more."


def model(context: str) -> str:
    """Call the tool after each instruction, then answer."""
    return call("add", a=1, b=2) if context.count("</tool_response>") <= context.count(NEXT) else "It is 3"


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Saves rollouts of `tool_agent` whose tasks have two steps."""

    class Folder:
        told = False

        async def next_step(self):
            done, self.told = self.told, True
            return None if done else NEXT

    folders = defaultdict(Folder)
    monkeypatch.setattr(tool, "task_folder_state", lambda data: folders[data.request_id])
    return lambda **options: saved_rollouts(tmp_path, "tool_agent", model, **options)


def test_they_pass(saved):
    path = saved(row={"extra_info": {FOLDER_KEY: "x"}})
    assert NEXT in pq.read_table(path).to_pylist()[0]["trajectories"][0]["messages"]
    ledger = audited(path)
    assert broken(ledger) == {}
    assert all(ledger.findings[name].num_checked for name in ("prompt tokens", "answer tokens", "calls", "operations"))


def test_another_instruction_than_the_recorded_one_is_found(saved, tmp_path):
    path = saved(row={"extra_info": {FOLDER_KEY: "x"}})
    table = pq.read_table(path)
    rows = table.to_pylist()
    (trajectory,) = rows[0]["trajectories"]
    trajectory["messages"] = trajectory["messages"].replace(NEXT, "Say the secret.")
    write(table, rows, path, sealed=True)
    assert "answer tokens" in broken(audited(path))


def test_without_a_task_folder_such_a_message_is_a_problem(saved):
    assert broken(audited(saved()))
