"""Rollouts of a program that samples through a session: checked by the runner, stored, read back, and audited."""

from __future__ import annotations

import asyncio
import json

import pyarrow.parquet as pq
import pytest
from chat_families import family_tokenizer
from loop_builders import call
from recorded_rollouts import audited, broken, reasons, saved_rollouts
from session_builders import ADD, Client, user

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.chat.format import ChatFormat
from agentrl.gateway.base import RequestError
from agentrl.gateway.session import Session
from agentrl.store import TrajectoryStore

TEXTS = {"prompt tokens", "answer tokens", "further prompts", "calls", "answers", "outcomes", "operations", "messages"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Loops that a test registers are forgotten after it."""
    monkeypatch.setattr(agent_loops, "_objects", dict(agent_loops._objects))


class Program(AgentLoop):
    """A program with a title, a discarded answer, a branch, a cut turn, and a limit at its end."""

    strips_thinking = False

    async def run(self, task, generate, tools, interaction, sampling):
        session = Session(self.chat, self.parser, self.config, generate, sampling, task, call_format=self.call_format)
        try:
            await self.work(session, list(task.messages))
        except RequestError:
            assert session.ended.is_set()
        return session.rollout()

    async def work(self, session, messages):
        title = Client(session, [{"role": "system", "content": "Make a title."}, *messages], tools=())
        main = Client(session, list(messages))
        unused = await session.answer(main.request(max_tokens=9))
        session.delivered(unused.turn_id)
        await asyncio.gather(title.ask(), main.ask())
        await main.ask(*main.results("3"), user("<|im_end|> Be brief."))
        kept = list(main.messages)
        await main.ask(user("Left?"), max_tokens=3)
        await main.ask(user("Go on."))
        main.messages = kept
        await main.ask(user("Right?"))
        await main.ask(user("Over the limit"))


def replying(context: str) -> str:
    if "Make a title" in context:
        return "A title"
    if "<tool_response>" not in context:
        return call("add", a=1, b=2)
    return "It is 3, I am sure of it"


@pytest.mark.parametrize("family", ["chatml", "thinking"])
def test_rollouts_of_a_program_pass_the_audit(tmp_path, family):
    chat = ChatFormat(family_tokenizer(family))
    path = saved_rollouts(tmp_path, Program, replying, chat=chat, multi_turn={"max_assistant_turns": 7})
    ledger = audited(path)
    assert broken(ledger) == {}
    assert not TEXTS & reasons(ledger).keys(), reasons(ledger)
    assert all(ledger.findings[name].status == "passed" for name in TEXTS)
    rollout = TrajectoryStore(path.parent, split="val").groups(0)[0].rollouts[0]
    kinds = [each.kind.value for each in rollout.operations]
    assert kinds.count("branch") == 1
    assert kinds.count("messages") == 3
    assert [each.weight for each in rollout.trajectories] == [0.0, 0.0, 1.0, 1.0]
    assert rollout.stop == "max_assistant_turns"


def altered(path, change):
    """Rewrite the operations and trajectories of the file's rows."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        change(row)
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)
    return {name for name in broken(audited(path)) if name != "seals"}


def _other_copy(row):
    branch = next(each["trajectory"] for each in row["operations"] if each["kind"] == "branch")
    row["trajectories"][branch]["segments"][0]["token_ids"][-1] -= 1


def _other_answer(row):
    segments = row["trajectories"][-1]["segments"]
    next(each for each in segments if each["author"] == "tool")["token_ids"][3] += 1


def _other_outcome(row):
    row["tool_calls"][0]["outcome"] = "timeout"


def _other_parent(row):
    operation = next(each for each in row["operations"] if each["kind"] == "branch")
    operation["detail"] = json.dumps({**json.loads(operation["detail"]), "parent": 99})


def _other_tools(row):
    operation = next(each for each in row["operations"] if "add" in each["detail"])
    operation["detail"] = operation["detail"].replace("Add.", "Subtract.")


def _other_result(row):
    row["tool_calls"][0]["result"] = "4"


ALTERATIONS = {
    "further prompts": _other_copy,
    "answer tokens": _other_answer,
    "outcomes": _other_outcome,
    "operations": _other_parent,
    "prompt tokens": _other_tools,
    "answers": _other_result,
}


@pytest.mark.parametrize("invariant", ALTERATIONS)
def test_the_audit_finds_what_was_altered(tmp_path, invariant):
    path = saved_rollouts(tmp_path, Program, replying, multi_turn={"max_assistant_turns": 7})
    assert invariant in altered(path, ALTERATIONS[invariant])


def test_the_schemas_of_a_program_are_saved_with_its_rollouts(tmp_path):
    path = saved_rollouts(tmp_path, Program, replying, multi_turn={"max_assistant_turns": 7})
    details = {each["detail"] for row in pq.read_table(path).to_pylist() for each in row["operations"]} - {""}
    assert any(json.loads(detail)["schemas"] == [ADD.model_dump(mode="json")] for detail in details)
