"""The search task: answers checked against the documents, demonstrations against the tool, disjoint splits."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from agentrl.registry import load_module
from agentrl.rewards.builtin.question_answering import search_qa
from agentrl.tools.loading import tools_of
from agentrl.tools.search.passages import shown

SEARCH_QA = Path(__file__).parents[2] / "examples/search_qa"
NUM_TOWNS = {"test": 30, "val": 20, "train": 40, "sft": 400}


@pytest.fixture(scope="module")
def search_task(tmp_path_factory):
    """A small version of the task."""
    folder = tmp_path_factory.mktemp("search_qa")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        module = load_module(str(SEARCH_QA / "make_search_task.py"))
        patch.setattr(module, "NUM_TOWNS", NUM_TOWNS)
        module.make_search_task(folder / "task", seed=0)
    return folder / "task"


def rows(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def facts(folder):
    """What the documents say, read by patterns: (name, relation) -> name."""
    text = "\n".join(row["text"] for row in rows(folder, "corpus"))
    patterns = {
        "mayor": r"mayor of (\w+) is (\w+)",
        "born": r"(\w+) was born in (\w+)",
    }
    return {(name, relation): value for relation, each in patterns.items() for name, value in re.findall(each, text)}


def answer(question, known):
    if match := re.fullmatch(r"Who is the mayor of (\w+)\?", question):
        return known[match[1], "mayor"]
    if match := re.fullmatch(r"Where was (\w+) born\?", question):
        return known[match[1], "born"]
    (name,) = re.fullmatch(r"Where was the mayor of (\w+) born\?", question).groups()
    return known[known[name, "mayor"], "born"]


def name_of(messages):
    return re.search(r"(\w+)(?: born)?\?", messages[1]["content"])[1]


def test_answers_are_those_of_the_documents_and_no_town_occurs_twice(search_task):
    known, splits = facts(search_task), {name: rows(search_task, name) for name in ("test", "val", "train")}
    assert {name: len(split) for name, split in splits.items()} == {"test": 30, "val": 20, "train": 40}
    questions = [row for split in splits.values() for row in split]
    assert [answer(row["prompt"][1]["content"], known) for row in questions] == [
        row["ground_truth"] for row in questions
    ]
    names = [name_of(row["prompt"]) for row in questions]
    names += [name_of(row["messages"]) for row in rows(search_task, "sft")]
    mayors = {town: mayor for (town, relation), mayor in known.items() if relation == "mayor"}
    towns = [mayors.get(name, name) for name in names]  # each town by the name of its mayor
    assert len(set(towns)) == len(towns) == sum(NUM_TOWNS.values())
    assert len(rows(search_task, "corpus")) == 2 * len(towns)


def test_the_teacher_is_correct_in_a_quarter_of_its_demonstrations(search_task):
    known, traces = facts(search_task), [row["messages"] for row in rows(search_task, "sft")]

    def reward(trace):
        return search_qa(str(trace[-1]["content"]), answer(trace[1]["content"], known))["score"]

    assert sum(map(reward, traces)) / len(traces) == 0.25
    searches = Counter((len(trace) - 3) // 2 for trace in traces if reward(trace))
    assert searches.keys() == {1, 2}  # correct ones search once or twice
    assert any(len(trace) == 3 for trace in traces)  # some give up at once


def test_the_tool_of_the_example_answers_as_in_the_demonstrations(search_task, monkeypatch):
    monkeypatch.setenv("SEARCH_QA_CORPUS", str(search_task / "corpus.jsonl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(search_task.parent / "cache"))
    (tool,) = tools_of(SEARCH_QA / "tools.yaml")
    index, top_k, asked, answered = tool.index, tool.entry.top_k, [], []
    for trace in (row["messages"] for row in rows(search_task, "sft")):
        asked += [call["function"]["arguments"]["query_list"] for turn in trace for call in turn.get("tool_calls", [])]
        answered += [turn["content"] for turn in trace if turn["role"] == "tool"]
    found = (
        [[index.passage(hit.number) for hit in index.search(each, top_k)] for each in queries] for queries in asked
    )
    assert [shown(passages) for passages in found] == answered
    assert len(asked) > 300


def test_a_syllable_of_a_name_is_a_token(search_task):
    tokenizer = AutoTokenizer.from_pretrained(search_task / "model")
    prompt = rows(search_task, "test")[0]["prompt"]
    tokens = [tokenizer.decode(token) for token in tokenizer.encode(prompt[1]["content"])]
    name = name_of(prompt)
    assert tokens[tokens.index(name[:2]) :][:3] == [name[:2], name[2:4], name[4:]]
    assert json.loads((search_task / "task.json").read_text())["prompt_tokens"] < 30
