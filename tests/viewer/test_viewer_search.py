"""Search finds text in messages, and nowhere else."""

from __future__ import annotations

import threading
import time

import pytest
from viewer_runs import HOSTILE, group, rollout, write_run

from agentrl.store.text import original
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Trajectory

CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"query": 'a "b"'}}}
TEXTS = ["The answer is 7", 'He said "no"\nand left', "back\\slash", "Grüße", HOSTILE, "role"]


@pytest.fixture
def asked(view, tmp_path):
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "in parts"}], "tool_calls": [CALL]}]
    calling = Rollout([Trajectory((), [])], Stop.FINISHED), Rollout([Trajectory((), messages)], Stop.FINISHED)
    steps = {step: [group(text, rollout(text), rollout("other"))] for step, text in enumerate(TEXTS[:5], start=1)}
    return view(write_run(tmp_path, {**steps, 9: [group("calls", *calling)]}))


def found(asked, text, **words):
    for _ in range(3000):
        answer = asked.json("api/rows", q=text, **words)
        if answer["num_searched"] == answer["num_parts"]:
            return [(row["uid"], row["number"]) for row in answer["rows"]]
        time.sleep(0.02)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    "text", ["answer", "ANSWER IS", 'said "no"\nand', "back\\slash", "<script>", "onerror=", "\u202eevil", "\ufdd0d83d"]
)
def test_text_search_ignores_case(asked, text):
    """A URL encodes half a surrogate pair in the same way as a trajectory file."""
    expected = [(said, 0) for said in reversed(TEXTS[:5]) if original(text).lower() in said.lower()]
    assert len(expected) == 1
    assert found(asked, text) == expected


@pytest.mark.parametrize("text", ["in parts", "look_up", '"query"', 'a \\"b\\"'])
def test_search_includes_message_parts_and_tool_calls(asked, text):
    assert found(asked, text) == [("calls", 1)]


@pytest.mark.parametrize("text", ["role", "assistant", "content", "tool_calls", "u202e"])
def test_search_ignores_the_storage_format_of_messages(asked, text):
    assert found(asked, text) == []


def test_search_combines_with_filters(asked):
    assert len(found(asked, "other")) == 5
    assert found(asked, "other", step_max="1") == [("The answer is 7", 1)]


def test_an_unfinished_search_does_not_hold_up_filters(asked, monkeypatch):
    filtered = threading.Event()
    searched = []  # whether the filter's answer came first

    def matches(part, text):
        searched.append(filtered.wait(60))
        return [True] * len(part.rows)

    monkeypatch.setattr("agentrl.viewer.search._matches", matches)
    answer = asked.json("api/rows", q="new")
    assert answer["num_searched"] < answer["num_parts"]
    asked.json("api/rows", stop="finished")
    filtered.set()
    assert found(asked, "new")
    assert all(searched)


def test_two_tabs_search_side_by_side(asked, monkeypatch):
    """Each tab continues while the other tab's search runs; no search restarts on each request."""
    monkeypatch.setattr(
        "agentrl.viewer.search._matches", lambda part, text: time.sleep(0.02) or [True] * len(part.rows)
    )
    texts = ["one", "other"]
    for _ in range(3000):
        answers = [asked.json("api/rows", q=text) for text in texts]
        if all(answer["num_searched"] == answer["num_parts"] for answer in answers):
            return
        time.sleep(0.01)
    raise AssertionError("the searches do not end")
