"""Agent loops that are not built in: their conversations are audited from the recorded operations."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from altered_files import write
from loop_builders import call
from recorded_rollouts import audited, broken, reasons, saved_rollouts

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.agent_loops.base import Conversation, model_segment
from agentrl.agent_loops.react import ReactAgent
from agentrl.registry import load_file
from agentrl.tools.base import InfraError
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory

EXAMPLE = Path(__file__).parents[2] / "examples/custom_agent_loop/second_chance.py"
TEXTS = {"prompt tokens", "answer tokens", "calls", "answers", "outcomes", "operations", "messages"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Loops that a test registers are forgotten after it."""
    monkeypatch.setattr(agent_loops, "_objects", dict(agent_loops._objects))


def calling(context: str) -> str:
    """A model that answers at once, calls a tool when it is asked again, and answers from the result."""
    if "<tool_response>" in context:
        return "It is 3"
    return call("add", a=1, b=2) if "Use a tool" in context or "Sub-task" in context else "I do not know"


def eager(context: str) -> str:
    """A model that calls a tool until it has two results."""
    return "It is 3" if context.count("tool_response>\n") >= 4 else call("add", a=1, b=context.count("<tool_response>"))


class Asking(AgentLoop):
    """Says something before the first turn and after tool answers, and ignores the last calls."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        chat.say("Use a tool, please.")
        turn = await chat.model_turn()
        await chat.tool_turn(turn)
        chat.say("Are you sure?")
        await chat.model_turn()
        chat.say("Really?")
        await chat.model_turn()
        return chat.rollout()


class Delegating(AgentLoop):
    """Two sub-agents side by side, each with tools, then an answer after a restart."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, None, None, sampling)
        await chat.model_turn()
        helpers = [
            self.open(task, generate, tools, None, sampling, messages=[{"role": "user", "content": f"Sub-task {n}"}])
            for n in range(2)
        ]
        await asyncio.gather(*(self.work(helper) for helper in helpers))
        answers = " ".join(str(helper.trajectory.messages[-1]["content"]) for helper in helpers)
        chat = chat.restart([*chat.trajectory.messages, {"role": "user", "content": answers}])
        await chat.model_turn()
        return chat.rollout()

    async def work(self, chat):
        while (turn := await chat.model_turn()) and turn.calls:
            await chat.tool_turn(turn)


class Compacting(AgentLoop):
    """Continues from a summary after each tool answer."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        while (turn := await chat.model_turn()) and turn.calls:
            if not await chat.tool_turn(turn):
                break
            summary = {"role": "user", "content": f"Use a tool. So far: {chat.tool_calls[-1].result}"}
            chat = chat.restart([*task.messages, summary])
        return chat.rollout()


class OwnReact(ReactAgent):
    """ReAct with a word between the turns."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        while turn := await chat.model_turn():
            if not turn.calls:
                break
            await chat.tool_turn(turn)
        return chat.rollout()


class Talking(AgentLoop):
    """A simulated user, and a loop that goes on after the user has ended the conversation."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        while turn := await chat.model_turn():
            if turn.calls:
                await chat.tool_turn(turn)
            elif not await chat.user_turn():
                await chat.tool_turn(turn)
                break
        return chat.rollout()


class Catching(AgentLoop):
    """Catches the failure of a tool and cuts a call off, then goes on."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        for _ in range(2):
            turn = await chat.model_turn()
            try:
                await chat.tool_turn(turn)
            except InfraError:
                chat.say("The tool is down.")
        return chat.rollout()


def reacting(context: str) -> str:
    return "Final Answer: 3" if "Observation: " in context else 'Action: add\nAction Input: {"a": 1, "b": 2}\n'


def failing(context: str) -> str:
    return call("fail", kind="tool" if "is down" in context else "infra")


LOOPS = {
    "example": (lambda: load_file(EXAMPLE).SecondChance, calling, {}),
    "says anything anywhere": (lambda: Asking, calling, {}),
    "sub-agents": (lambda: Delegating, calling, {}),
    "sub-agents with few calls": (lambda: Delegating, eager, {"multi_turn": {"max_tool_calls": 3}}),
    "compaction": (lambda: Compacting, eager, {}),
    "compaction with few calls": (lambda: Compacting, eager, {"multi_turn": {"max_tool_calls": 1}}),
    "compaction with few turns": (lambda: Compacting, eager, {"multi_turn": {"max_assistant_turns": 2}}),
    "short turns": (lambda: Delegating, calling, {"multi_turn": {"max_turn_tokens": 5}}),
    "react": (lambda: OwnReact, reacting, {}),
    "user": (lambda: Talking, calling, {"user": True, "row": {"interaction_kwargs": {"name": "user"}}}),
    "few turns of a user": (
        lambda: Talking,
        calling,
        {"user": True, "row": {"interaction_kwargs": {"name": "user"}}, "multi_turn": {"max_user_turns": 1}},
    ),
    "infrastructure errors": (lambda: Catching, failing, {}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("loop", "reply", "options"), LOOPS.values(), ids=LOOPS)
def test_loops_on_the_public_api_pass_the_full_audit(loop, reply, options, tmp_path):
    ledger = audited(saved_rollouts(tmp_path, loop(), reply, **options))
    assert broken(ledger) == {}
    unchecked = {name for name, found in ledger.findings.items() if found.status != "passed"}
    assert unchecked <= {"rescored", "answer tokens"}
    assert not TEXTS & reasons(ledger).keys()
    assert ("answer tokens" in unchecked) == (options.get("multi_turn") == {"max_turn_tokens": 5})


@pytest.mark.parametrize("loop", ["tool_agent", "react_agent", "single_turn_agent"])
def test_built_in_loops_record_their_operations_too(loop, tmp_path):
    reply = reacting if loop == "react_agent" else calling if loop == "single_turn_agent" else eager
    ledger = audited(saved_rollouts(tmp_path, loop, reply))
    assert (broken(ledger), ledger.findings["operations"].status) == ({}, "passed")


class Wording(Conversation):
    def answer_messages(self, calls, texts):
        return [{"role": "user", "content": f"<tool_response> {' '.join(texts)}"}]


class OwnWording(Talking):
    conversation_class = Wording


def test_own_wording_of_answers_is_reported_as_unchecked(tmp_path):
    ledger = audited(saved_rollouts(tmp_path, OwnWording, lambda context: eager(context + "Use a tool")))
    assert broken(ledger) == {}
    assert set(reasons(ledger)) == {"messages", "answers"}
    assert not any(found.uncheckable for found in ledger.findings.values())


class Raw(AgentLoop):
    """Builds its rollout itself, from the conversation's segments."""

    async def run(self, task, generate, tools, interaction, sampling):
        trajectory = Trajectory([Segment(Author.PROMPT, self.chat.start(task.messages, ()))], task.messages)
        trajectory.append(model_segment(completion := await generate(trajectory.token_ids, sampling), sampling))
        trajectory.messages.append({"role": "assistant", "content": self.chat.text(completion.token_ids)})
        return Rollout([trajectory], Stop.FINISHED)


def test_rollouts_without_operations_say_what_is_not_checked(tmp_path):
    ledger = audited(saved_rollouts(tmp_path, Raw, calling))
    assert broken(ledger) == {}
    why = "agent loop 'Raw' is not built in and recorded no operations"
    uncheckable = {name for name, found in ledger.findings.items() if found.uncheckable}
    assert uncheckable == {"prompt tokens", "answer tokens", "calls", "answers", "outcomes", "operations"}
    assert all(why in reasons(ledger)[name][0] for name in uncheckable)


class Honest(AgentLoop):
    """One tool call and a question; a subclass tampers with the conversation in between."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        self.begin(chat)
        await chat.tool_turn(await chat.model_turn())
        self.after_tool(chat)
        await chat.model_turn()
        chat.say("Sure?")
        self.after_words(chat)
        await chat.model_turn()
        return self.end(chat.rollout())

    def begin(self, chat): ...
    def after_tool(self, chat): ...
    def after_words(self, chat): ...
    def end(self, rollout):
        return rollout


class EditsAnswer(Honest):
    """Puts other tokens in place of the tool's answer."""

    def after_tool(self, chat):
        segment = chat.trajectory.segments[-1]
        edited = replace(segment, token_ids=[*segment.token_ids[:-1], segment.token_ids[1]])
        chat.trajectory._segments[-1] = edited
        chat.trajectory._token_ids[-1] = edited.token_ids[-1]


class EditsPrompt(Honest):
    def begin(self, chat):
        segment = chat.trajectory.segments[0]
        chat.trajectory._segments[0] = replace(segment, token_ids=[segment.token_ids[1], *segment.token_ids[1:]])
        chat.trajectory._token_ids[0] = segment.token_ids[1]


class SaysOther(Honest):
    """The message differs from what the model read."""

    def after_words(self, chat):
        chat.trajectory.messages[-1] = {"role": "user", "content": "Well done!"}


class DropsAnswer(Honest):
    """Removes the tool's message; its tokens stay."""

    def after_tool(self, chat):
        chat.trajectory.messages.pop()


class ChangesAnswer(Honest):
    """Changes message and tokens of a tool's answer, but not the recorded result."""

    def after_tool(self, chat):
        message = {**chat.trajectory.messages[-1], "content": "4"}
        token_ids = chat._bound.chat.extend([message], chat.template_schemas, turn_closed=True)
        chat.trajectory.messages[-1] = message
        del chat.trajectory._token_ids[-len(chat.trajectory._segments.pop()) :]
        chat.trajectory.append(Segment(Author.TOOL, token_ids))


class Appends(Honest):
    """Appends text that no operation records."""

    def after_tool(self, chat):
        chat.trajectory.messages.append({"role": "user", "content": "x"})
        chat.trajectory.append(Segment(Author.USER, chat._bound.chat.tokenizer.encode("x")))


class AppendsAtTheEnd(Honest):
    def end(self, rollout):
        rollout.trajectories[0].messages.append({"role": "user", "content": "x"})
        return rollout


class InventsCalls(Honest):
    def end(self, rollout):
        rollout.tool_calls.append(rollout.tool_calls[0])
        return rollout


class ForgetsTrajectory(Honest):
    def end(self, rollout):
        rollout.trajectories.clear()
        rollout.tool_calls.clear()
        return rollout


class AddsTrajectory(Honest):
    def end(self, rollout):
        extra = Trajectory([rollout.trajectories[0].segments[0]], rollout.trajectories[0].messages[:1])
        rollout.trajectories.append(extra)
        return rollout


class RunsOtherCalls(Honest):
    """Calls the tool with arguments that the model did not write."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        turn = await chat.model_turn()
        await chat.tool_turn(replace(turn, calls=(replace(turn.calls[0], arguments='{"a": 5, "b": 5}'),)))
        await chat.model_turn()
        return chat.rollout()


TAMPERING = {
    EditsAnswer: ("answer tokens", "trajectories[0].segments[2].token_ids"),
    EditsPrompt: ("prompt tokens", "trajectories[0].segments[0].token_ids[0]"),
    SaysOther: ("answer tokens", "trajectories[0].segments[4].token_ids"),
    DropsAnswer: ("operations", "operations[3].first_message"),
    ChangesAnswer: ("answers", "tool_calls[0].result"),
    Appends: ("operations", "operations[3].first_segment"),
    AppendsAtTheEnd: ("operations", "operations[5].num_messages"),
    InventsCalls: ("operations", "operations[2].num_calls"),
    ForgetsTrajectory: ("operations", "operations[0].trajectory"),
    AddsTrajectory: ("operations", "operations[0].kind"),
    RunsOtherCalls: ("calls", "tool_calls[0].arguments"),
}


@pytest.mark.parametrize(("loop", "found"), TAMPERING.items(), ids=[each.__name__ for each in TAMPERING])
def test_a_loop_that_tampers_is_found_by_name(loop, found, tmp_path):
    ledger = audited(saved_rollouts(tmp_path, loop, lambda context: eager(context)))
    invariant, column = found
    assert any(problem.column.startswith(column) for problem in ledger.findings[invariant].problems), broken(ledger)


def test_honest_loop_passes(tmp_path):
    assert broken(audited(saved_rollouts(tmp_path, Honest, eager))) == {}


ALTERATIONS = {
    "kind": ["say", "task", "tool_turn", "other"],
    "trajectory": [1, -1],
    "num_before": [9, -1, 0],
    "first_segment": [0, 1, 7],
    "num_segments": [0, 2, -1],
    "first_message": [0, 7],
    "num_messages": [0, 2, -1],
    "num_calls": [0, 2, -1],
    "detail": ["{}", "", '{"form": "chat"}', "x"],
}


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize("leaf", ALTERATIONS)
@pytest.mark.parametrize("loop", [Compacting, "tool_agent"], ids=["own loop", "built-in loop"])
def test_altered_operations_are_found_even_with_recomputed_seals(leaf, loop, tmp_path):
    table = pq.read_table(saved_rollouts(tmp_path, loop, eager))
    for place in range(3):
        for value in ALTERATIONS[leaf]:
            rows = copy.deepcopy(table.to_pylist())
            operation = rows[1]["operations"][place]
            if operation[leaf] == value or (leaf == "kind" and (operation[leaf], value) == ("task", "task")):
                continue
            operation[leaf] = value
            write(table, rows, tmp_path / "step-000000.parquet", sealed=True)
            ledger = audited(tmp_path / "step-000000.parquet")
            assert "operations" in broken(ledger), (place, value, broken(ledger))
            assert not ledger.findings["seals"].num_problems


REPLIES = [
    *(call("add", a=1, b=2), "So " + call("add", a=3, b=4), call("add", a=1, b=2) * 3, call("add", a="no", b=1)),
    *(call("fail", kind=kind) for kind in ("tool", "bug", "infra")),
    "<tool_call>{not json}</tool_call> then " + call("add", a=1, b=1),
    f"<think>{call('add', a=1, b=2)}</think>{call('add', a=2, b=2)}",
    *(call("luk", x=1), "The answer is 3", "word " * 70, "It is <", "<|im_end|> x"),
]
LIMITS = {
    "max_assistant_turns": [1, 2, 3, 6],
    "max_tool_calls": [None, 0, 1, 2, 3],
    "max_parallel_calls": [1, 2, 4],
    "max_turn_tokens": [None, 30, 90],
    "max_tool_response_length": [256, 3],
}
ANY_LOOP = ["tool_agent", Asking, Delegating, Compacting, Talking, Catching, Honest]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(42))
def test_anything_that_a_model_writes_passes_the_audit(seed, tmp_path):
    random = Random(seed)
    limits = {name: random.choice(values) for name, values in LIMITS.items()}
    loop = ANY_LOOP[seed % len(ANY_LOOP)]
    user = {"user": True, "row": {"interaction_kwargs": {"name": "user"}}} if loop is Talking else {}

    def reply(context):
        return Random(f"{seed} {context}").choice(REPLIES)

    path = saved_rollouts(tmp_path, loop, reply, multi_turn=limits, **user)
    assert broken(audited(path)) == {}


class CallsNothing(AgentLoop):
    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.tool_turn(await chat.model_turn())
        chat.say("Sure?")
        await chat.model_turn()
        return chat.rollout()


def test_tool_turn_without_calls_appends_nothing(tmp_path):
    path = saved_rollouts(tmp_path, CallsNothing, lambda context: "3")
    (first, *_) = pq.read_table(path).to_pylist()
    assert [operation["kind"] for operation in first["operations"]] == ["task", "model_turn", "say", "model_turn"]
    assert [each["author"] for each in first["trajectories"][0]["segments"]] == ["prompt", "model", "user", "model"]
    assert broken(audited(path)) == {}
