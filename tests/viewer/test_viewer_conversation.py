"""One rollout, as the page receives it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from viewer_runs import HOSTILE, group, rollout, write_run

from agentrl.store import TrajectoryStore
from agentrl.store.schema import CONFIG, VOCABULARY
from agentrl.types.rollout import Outcome, Rollout, Stop, TurnReward
from agentrl.types.sample import Sample
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan
from agentrl.viewer.rollout_page import shown_messages
from agentrl.viewer.tokens import open_tokens, vocabulary_sha256

CALCULATOR = Path(__file__).parents[2] / "examples/calculator"
PLACE = {"split": "train", "step": 1, "number": 0}


def test_saved_values_are_shown_token_by_token(view, tmp_path):
    sampled = rollout(reward=1.0, calls=(("f", Outcome.TIMEOUT),))
    trajectory = sampled.trajectories[0]
    advantages = [0.0, 0.0, 0.5, 0.5, 0.5, 0.0, 0.5]
    sample = Sample(list(trajectory.token_ids), trajectory.loss_mask, [1.0] * 7, advantages, rollout_id="a/0")
    told = view(write_run(tmp_path, {1: [group("a", sampled)]}, samples=[sample])).json("api/rollout", uid="a", **PLACE)
    segments = told["trajectories"][0]["segments"]
    assert [(part["author"], part["ids"]) for part in segments] == [
        *(("prompt", [1, 2]), ("model", [3, 4, 5])),
        *(("tool", [6]), ("model", [7])),
    ]
    assert [part["logprobs"] for part in segments] == [None, [-0.5, -1.0, -1.5], None, [-0.5]]
    assert [value for part in segments for value in part["advantages"]] == advantages
    assert segments[1]["versions"] == [[0, 3]]
    assert told["tool_calls"][0] | {"outcome": "timeout", "duration_s": 0.2, "started_s": 0.1} == told["tool_calls"][0]
    assert told["seed"] == str(2**63 + 5)  # a browser's integers are exact up to 2**53
    assert told["reward"] == 1.0


def test_hostile_text_arrives_as_it_was_written(view, tmp_path):
    hostile = rollout(HOSTILE, calls=((HOSTILE, Outcome.OK),), error=HOSTILE)
    asked = view(write_run(tmp_path, {1: [group("a", hostile, source=HOSTILE)]}))
    answer = asked.get("api/rollout", uid="a", **PLACE)
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    texts = [
        told["source"],
        told["error"],
        told["tool_calls"][0]["name"],
        told["trajectories"][0]["messages"][1]["text"],
    ]
    assert texts == [HOSTILE] * 4
    (row,) = asked.json("api/rows")["rows"]
    assert (row["source"], row["tools"]) == (HOSTILE, [HOSTILE])


def test_what_is_known_of_a_harness_is_shown(view, tmp_path):
    ended = rollout()
    ended.facts = {"harness_exit_code": 3, "harness_output": HOSTILE, "harness_wait_s": 0.5}
    told = view(write_run(tmp_path, {1: [group("a", ended)]})).json("api/rollout", uid="a", **PLACE)
    assert told["facts"] == {"harness_exit_code": "3", "harness_output": HOSTILE, "harness_wait_s": "0.5"}


def test_invalid_json_numbers_and_depth_are_errors(view, tmp_path):
    strange = Segment(Author.MODEL, [1, 2], [-math.inf, math.nan], [VersionSpan(0, 2)])
    nested: object = "x"
    for _ in range(600):
        nested = [nested]
    call = {"type": "function", "function": {"name": "f", "arguments": nested}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": {"a": 1}}]
    turn = TurnReward(0, 0, "style", 0.5)
    strange_rollout = Rollout([Trajectory([strange], messages)], Stop.FINISHED, turn_rewards=[turn])
    told = view(write_run(tmp_path, {1: [group("a", strange_rollout)]})).json("api/rollout", uid="a", **PLACE)
    (trajectory,) = told["trajectories"]
    assert trajectory["segments"][0]["logprobs"] == ["-inf", "nan"]
    assert trajectory["messages"][0]["calls"][0]["arguments"] == "[" * 600 + '"x"' + "]" * 600
    assert [message["text"] for message in trajectory["messages"][1:]] == ['{"a":1}']
    assert told["turn_rewards"][0]["value"] == 0.5


def test_message_that_is_not_a_mapping_is_refused(view, tmp_path):
    odd = Rollout([Trajectory([Segment(Author.PROMPT, [1])], ["no message"])], Stop.FINISHED)
    answer = view(write_run(tmp_path, {1: [group("a", odd)]})).get("api/rollout", uid="a", **PLACE)
    assert answer.status_code == 400
    assert "column 'trajectories.messages'" in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_missing_rollout_is_a_one_line_error(view, tmp_path):
    asked = view(write_run(tmp_path, {1: [group("a", rollout())]}))
    for words in ({"uid": "b", **PLACE}, {**PLACE, "uid": "a", "split": "../train"}, {**PLACE, "uid": "a", "step": 7}):
        answer = asked.get("api/rollout", **words)
        assert answer.status_code == 400
        assert "\n" not in answer.json()["error"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a tokenizer for few characters, so that others need one token per byte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CALCULATOR))
        from tiny_model import make_tokenizer
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer(["<|im_start|>user\nWhat is 2+3?<|im_end|>\n"] * 4).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def test_token_texts_concatenate_to_the_text(tokenizer, model):
    tokens = open_tokens(model, {}, str(model))
    ids = tokenizer.encode("What is 2+3? Grüße<|im_end|>🙂", add_special_tokens=False)
    texts = tokens.texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids)
    assert texts[-2:] == ["", "🙂"]
    assert tokens.texts(ids[:-1])[-1] == "\N{REPLACEMENT CHARACTER}"  # cut inside a character


def test_the_runs_tokenizer_is_compared_with_the_recorded_one(tokenizer, model, tmp_path):
    from agentrl.run_folder import provenance

    kept = {VOCABULARY: provenance.hashes(tokenizer)[VOCABULARY]}
    config = {CONFIG: json.dumps({"model": {"path": str(model)}})}
    own = open_tokens(tmp_path, {**kept, **config}, None)  # of the model that the run started with
    assert own.texts([5]) is not None
    assert own.note == ""
    changed = open_tokens(tmp_path, {VOCABULARY: "0", **config}, None)
    assert changed.texts([5]) is None
    assert "is not the one that the rollouts were made with" in changed.note
    asked_for = open_tokens(tmp_path, {VOCABULARY: "0"}, str(model))
    assert asked_for.texts([5]) is not None
    assert "is not the one that the rollouts were made with" in asked_for.note
    assert "shown as ids" in open_tokens(tmp_path, kept, None).note


def test_steps_of_another_vocabulary_are_not_shown_with_the_first_ones(view, model, tmp_path):
    from tokenizers import Tokenizer

    own = {VOCABULARY: vocabulary_sha256(Tokenizer.from_file(str(model / "tokenizer.json")))}
    config = {CONFIG: json.dumps({"model": {"path": str(model)}})}
    for step, kept in ((1, own), (2, {VOCABULARY: "0"})):
        store = TrajectoryStore(tmp_path / "trajectories/train", provenance={**kept, **config})
        store.write(step, [group("a", rollout())])
    asked = view(tmp_path)
    for step, known in ((1, True), (2, False), (1, True)):
        told = asked.json("api/rollout", uid="a", **{**PLACE, "step": step})
        assert (told["trajectories"][0]["segments"][0]["texts"] is not None) == known
        assert ("is not the one that the rollouts were made with" in told["tokens_note"]) != known


def test_thoughts_are_shown_beside_the_content():
    turn = {"role": "assistant", "content": "5", "reasoning_content": "2 and 3."}
    assert shown_messages([turn, {"role": "user", "content": "Why?"}]) == [
        {"role": "assistant", "thoughts": "2 and 3.", "text": "5", "calls": []},
        {"role": "user", "thoughts": "", "text": "Why?", "calls": []},
    ]
