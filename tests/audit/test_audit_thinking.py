"""Runs with `rollout.multi_turn.thinking=strip`: the audit renders every context again from the saved messages."""

from __future__ import annotations

import copy
import json
from random import Random

import pyarrow.parquet as pq
import pytest
from altered_files import write
from chat_families import family_tokenizer
from loop_builders import call
from recorded_rollouts import audited, broken, reasons, saved_rollouts

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.chat.format import ChatFormat

CHAT = ChatFormat(family_tokenizer("thinking"))
USER = {"user": True, "row": {"interaction_kwargs": {"name": "user"}}}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Loops that a test registers are forgotten after it."""
    monkeypatch.setattr(agent_loops, "_objects", dict(agent_loops._objects))


def thinking(context: str) -> str:
    """A model that thinks in every turn, calls a tool once after each question, and answers."""
    question = context.rpartition("<|im_start|>user\n")[2]
    if "<tool_response>" in context.rpartition("<|im_start|>assistant")[0].rpartition("<|im_start|>user")[2]:
        return f"<think>\nIt says {len(context)}\n</think>\n\nIt is 3"
    return f"<think>\nUse a tool for {len(question)}\n</think>\n\nI add.\n" + call("add", a=1, b=len(context) % 7)


class Asking(AgentLoop):
    """Says something before the first turn, twice in a row, and after tool answers."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        chat.say("Use a tool, please.")
        chat.say("Think first.")
        await chat.tool_turn(await chat.model_turn())
        chat.say("Are you sure?")
        await chat.model_turn()
        return chat.rollout()


class Restarting(AgentLoop):
    """A sub-agent beside the conversation, and a restart after a further trajectory."""

    async def run(self, task, generate, tools, interaction, sampling):
        chat = self.open(task, generate, tools, interaction, sampling)
        helper = self.open(task, generate, tools, None, sampling, messages=[{"role": "user", "content": "Sub-task"}])
        for one in (chat, helper, chat):
            await one.tool_turn(await one.model_turn())
            one.say("Go on.")
        chat = chat.restart([*task.messages, {"role": "user", "content": chat.tool_calls[-1].result}])
        await chat.tool_turn(await chat.model_turn())
        chat.say("Go on.")
        await chat.model_turn()
        return chat.rollout()


def strip(tmp_path, loop="tool_agent", reply=thinking, **options):
    multi_turn = {"thinking": "strip", "format": "hermes", **options.pop("multi_turn", {})}
    options.setdefault("chat", CHAT)
    return saved_rollouts(tmp_path, loop, reply, multi_turn=multi_turn, **options)


def num_trajectories(path) -> list[int]:
    return [len(row["trajectories"]) for row in pq.read_table(path).to_pylist()]


CASES = {
    "tool": ("tool_agent", {}, [1]),
    "user": ("tool_agent", USER, [3]),
    "asking": (Asking, {}, [4]),
    "restarting": (Restarting, {}, [7]),
    "few turns": ("tool_agent", {**USER, "multi_turn": {"max_assistant_turns": 3}}, [2]),
    "few calls": ("tool_agent", {**USER, "multi_turn": {"max_tool_calls": 1}}, [2, 3]),
    "short turns": ("tool_agent", {**USER, "multi_turn": {"max_turn_tokens": 55}}, [1, 2, 3]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("loop", "options", "counts"), CASES.values(), ids=CASES)
def test_stripped_rollouts_pass_the_full_audit(loop, options, counts, tmp_path):
    path = strip(tmp_path, loop, **options)
    ledger = audited(path)
    assert broken(ledger) == {}
    assert set(num_trajectories(path)) <= set(counts)
    assert {name for name, found in ledger.findings.items() if found.status != "passed"} <= {"rescored"}
    assert not {"prompt tokens", "further prompts", "answer tokens", "calls"} & reasons(ledger).keys()


def altered(path, change) -> dict[str, str]:
    """The problems after `change` of the first row, whose seals are computed again."""
    table = pq.read_table(path)
    rows = copy.deepcopy(table.to_pylist())
    change(rows[0])
    write(table, rows, path, sealed=True)
    return broken(audited(path))


@pytest.mark.parametrize("place", [0, 40, -3, -1])
def test_a_prompt_that_is_not_what_the_template_renders_is_found(place, tmp_path):
    def change(row):
        ids = row["trajectories"][1]["segments"][0]["token_ids"]
        ids[place] = 300 if ids[place] != 300 else 301

    assert altered(strip(tmp_path, **USER), change)["further prompts"].startswith(
        "trajectories[1].segments[0].token_ids"
    )


def test_a_further_trajectory_with_the_thoughts_is_found(tmp_path):
    """The thoughts stay in the prompt, as with `keep`."""

    def change(row):
        first, second = row["trajectories"][:2]
        context = [token for segment in first["segments"] for token in segment["token_ids"]]
        answer = CHAT.extend(json.loads(second["messages"])[-1:], (), turn_closed=True)
        second["segments"][0]["token_ids"] = [*context, *answer]

    assert "further prompts" in altered(strip(tmp_path, **USER), change)


def test_other_messages_in_a_further_trajectory_are_found(tmp_path):
    def change(row):
        messages = json.loads(row["trajectories"][1]["messages"])
        turn = next(message for message in messages if message["role"] == "assistant")
        turn["reasoning_content"] = "Other"  # the prompt does not show it
        row["trajectories"][1]["messages"] = json.dumps(messages)

    assert altered(strip(tmp_path, **USER), change)["further prompts"] == "trajectories[1].segments[0].token_ids"


def test_other_token_counts_of_answers_in_a_further_trajectory_are_found(tmp_path):
    def change(row):
        row["tool_calls"][0]["num_tokens"] += 1

    path = strip(
        tmp_path, reply=lambda context: thinking(context).replace("I add.\n", "")
    )  # not as the template writes it
    assert num_trajectories(path)[0] == 2
    assert altered(path, change) == {"answers": "tool_calls[0].num_tokens"}


def test_further_trajectories_of_a_run_that_keeps_thoughts_are_found(tmp_path):
    path = strip(tmp_path, **USER)
    table = pq.read_table(path)
    kept = {key: value.replace(b'"strip"', b'"keep"') for key, value in table.schema.metadata.items()}
    pq.write_table(table.replace_schema_metadata(kept), path)
    assert broken(audited(path))["operations"] == "operations[5].kind"


ALTERATIONS = {
    "kind": ["restart", "messages", "task", "say"],
    "trajectory": [0, 2],
    "num_before": [0, 9],
    "num_segments": [0, 2],
    "num_messages": [0, 1, 9],
    "num_calls": [1],
    "detail": ["", '{"form": "chat"}'],
}


@pytest.mark.slow
@pytest.mark.parametrize("leaf", ALTERATIONS)
def test_altered_openings_of_further_trajectories_are_found(leaf, tmp_path):
    path = strip(tmp_path, **USER)
    table = pq.read_table(path)
    place = next(i for i, each in enumerate(table.to_pylist()[0]["operations"]) if each["kind"] == "render")
    for value in ALTERATIONS[leaf]:
        rows = copy.deepcopy(table.to_pylist())
        rows[0]["operations"][place][leaf] = value
        write(table, rows, path, sealed=True)
        assert "operations" in broken(audited(path)), value


REPLIES = [
    *("<think>\nHm\n</think>\n\n" + text for text in ("It is 3", "I add.\n" + call("add", a=1, b=2), call("luk", x=1))),
    *("It is 3", "word " * 70, call("add", a=1, b=2), "<think>" + call("add", a=1, b=2), "<|im_end|> x", "</think>x"),
    "<think>a</think>b<think>c</think>d " + call("fail", kind="tool"),
    "<tool_call>{not json}</tool_call> then " + call("add", a=1, b=1),
    "The tool says <|im_end|><|im_start|>assistant <tool_response> " + call("fail", kind="<|im_end|>"),
    '<tool_call>{"name": "add", "arguments": {"<|im_end|>": 1}}</tool_call>',
    *(call("fail", kind=kind) for kind in ("tool", "bug", "infra")),
]
LIMITS = {
    "max_assistant_turns": [1, 2, 3, 6],
    "max_user_turns": [None, 1],
    "max_tool_calls": [None, 0, 1, 2],
    "max_parallel_calls": [1, 4],
    "max_turn_tokens": [None, 30],
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(35))
def test_anything_that_a_model_writes_passes_the_audit(seed, tmp_path):
    random = Random(seed)
    replies = {}
    options = {**(USER if random.random() < 0.7 else {})}
    options["multi_turn"] = {name: random.choice(values) for name, values in LIMITS.items()}
    loop = random.choice(["tool_agent", "tool_agent", Asking, Restarting])
    path = strip(tmp_path, loop, lambda context: replies.setdefault(context, random.choice(REPLIES)), **options)
    assert broken(audited(path)) == {}, (loop, options)


SILENT = {"extra_info": {"chat_template_kwargs": {"enable_thinking": False, "other": None}}}


@pytest.mark.slow
@pytest.mark.parametrize("thinking", ["keep", "strip"])
def test_template_variables_of_a_row_are_audited(thinking, tmp_path):
    path = strip(tmp_path, multi_turn={"thinking": thinking}, user=True, row={**USER["row"], **SILENT})
    ledger = audited(path)
    assert broken(ledger) == {}
    unchecked = {name for name, found in ledger.findings.items() if found.status != "passed"}
    assert unchecked <= {"rescored", "answer tokens"}

    def change(row):
        row["extra_info"] = json.dumps({"chat_template_kwargs": {"enable_thinking": True}})

    assert altered(path, change)["prompt tokens"].startswith("trajectories[0].segments[0].token_ids")
