"""OpenEnv's traces: a round trip keeps tokens, masks and log-probabilities; what a trace has no place for is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.main import main
from agentrl.data.fields import FieldError
from agentrl.store import TrajectoryStore
from agentrl.store.importers.traces import joined, read_turns, trace_row
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

USER, CALLED = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "call"}
TOOL, SAID = {"role": "tool", "content": "2"}, {"role": "assistant", "content": "two"}


def model(ids: Sequence[int], *spans: VersionSpan) -> Segment:
    return Segment(Author.MODEL, ids, [-0.125 * each for each in ids], spans or [VersionSpan(3, len(ids))], 0.5)


def plain(segment: Segment) -> tuple[object, ...]:
    """The segment's values, to compare. Sequences of a file are of other types."""
    values = segment.author, tuple(segment.token_ids), segment.logprobs and tuple(segment.logprobs)
    return *values, tuple(segment.policy_versions), segment.temperature


def rollouts() -> Group:
    """A rollout with a tool, one with a branch and an untrained trajectory, and one that failed."""
    long = [Segment(Author.PROMPT, [1, 2]), model([3, 4], VersionSpan(3, 1), VersionSpan(4, 1))]
    long += [Segment(Author.TOOL, [5]), model([6])]
    branch = [Segment(Author.PROMPT, [1, 2, 3, 4]), Segment(Author.USER, [9]), model([7])]
    one = Rollout([Trajectory(long, [USER, CALLED, TOOL, SAID])], Stop.FINISHED, {"score": 1.0, "style": 0.5})
    two = Rollout(
        [Trajectory(long[:2], [USER, CALLED], weight=0.0), Trajectory(branch, [USER, CALLED, USER, SAID])],
        Stop.FINISHED,
        {"score": 0.0},
    )
    task = Task([USER], "2", "sums", 0, "u", extra_info={"tools": [{"type": "function", "function": {"name": "f"}}]})
    return Group(task, [one, two, Rollout([], Stop.ERROR, error="no")])


def exported(folder: Path, *groups: Group) -> list[dict[str, Any]]:
    """The traces. Any: JSON."""
    TrajectoryStore(folder / "run/trajectories/train").write(5, groups)
    assert main(["export-rollouts", f"{folder}/run", f"{folder}/traces.jsonl", "--format", "openenv"]) == 0
    return [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]


def test_a_trace_has_every_sampled_turn_with_its_context_and_mask(tmp_path, capsys):
    one, two = exported(tmp_path, rollouts())
    assert [(turn["prompt_token_ids"], turn["completion_token_ids"]) for turn in one["turns"]] == [
        ([1, 2], [3, 4]),
        ([1, 2, 3, 4, 5], [6]),
    ]
    assert [turn["loss_mask"] for turn in one["turns"]] == [[0, 0, 1, 1], [0, 0, 0, 0, 0, 1]]
    assert [turn["loss_mask"] for turn in two["turns"]] == [[0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
    assert one["turns"][0]["per_token_logps"] == [-0.375, -0.5]
    assert one["turns"][1]["request"]["messages"] == [USER, CALLED, TOOL]
    assert one["turns"][1]["response"] == {"choices": [{"message": SAID}]}
    assert one["turns"][0]["metadata"]["agentrl"]["rollout"]["rewards"] == {"score": 1.0, "style": 0.5}
    said = capsys.readouterr()
    assert "skipped: 1 failed rollouts" in said.err
    assert "not exported: advantages" in said.out


def test_a_round_trip_keeps_tokens_masks_versions_rewards_and_messages(tmp_path, capsys):
    exported(tmp_path, rollouts())
    assert main(["import-rollouts", f"{tmp_path}/traces.jsonl", f"{tmp_path}/back"]) == 0
    assert "(openenv)" in (said := capsys.readouterr().out)
    assert "not: log-probabilities of tokens that the mask excludes" in said
    first, second = TrajectoryStore(tmp_path / "back/trajectories/train").scan()
    original = rollouts()
    assert (first.step, first.task.uid, first.task.ground_truth, first.task.data_source) == (5, "u", "2", "sums")
    assert [first.rollout.rewards, second.rollout.rewards] == [each.rewards for each in original.rollouts[:2]]
    (kept,), (wanted,) = first.rollout.trajectories, original.rollouts[0].trajectories
    assert list(map(plain, kept.segments)) == list(map(plain, wanted.segments))
    assert kept.messages == wanted.messages
    assert [(call.name) for call in first.rollout.tool_calls] == []
    whole = second.rollout.trajectories[0]  # the branch continues the untrained turn, which is its context
    assert (list(whole.token_ids), whole.loss_mask) == ([1, 2, 3, 4, 9, 7], [0, 0, 0, 0, 0, 1])
    assert all(one.rollout.valid for one in (first, second))


TURN = {
    "node_id": "a",
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3, 4, 5],
    "per_token_logps": [-1.0, -2.0, 0],
    "loss_mask": [0, 0, 1, 0, 1],
}


def test_tokens_that_the_mask_excludes_are_context():
    (trajectory,) = trace_row({"trace": {"turns": [TURN]}, "reward": 0.5}).trajectories
    assert list(trajectory.token_ids) == [1, 2, 3, 4, 5]
    assert trajectory.loss_mask == [0, 0, 1, 0, 1]
    assert trajectory.logprobs == [0.0, 0.0, -1.0, 0.0, 0.0]
    assert trace_row({"trace": {"turns": [TURN]}, "reward": 0.5}).rewards == {"score": 0.5}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"node_id": ""}, r"turns\[0\].node_id': expected text"),
        ({"more": 1}, r"unknown field 'turns\[0\].more'"),
        ({"prompt_token_ids": []}, "expected at least one token id"),
        ({"prompt_token_ids": [1, -2]}, "expected a list of token ids"),
        ({"prompt_token_ids": [1, True]}, "expected a list of token ids"),
        ({"completion_token_ids": [3, 4, 2**40]}, "expected a list of token ids"),
        ({"per_token_logps": [-1.0]}, "expected 3 finite numbers"),
        ({"per_token_logps": [-1.0, float("nan"), 0]}, "expected 3 finite numbers"),
        ({"per_token_logps": None}, "per_token_logps"),
        ({"loss_mask": [0, 0, 1]}, "expected 5 values of 0 or 1"),
        ({"loss_mask": [0, 0, 2, 0, 1]}, "expected 5 values of 0 or 1"),
        ({"loss_mask": [0, 1, 1, 0, 1]}, "it is 1 in the prompt"),
        ({"request": [1]}, "request': expected an object"),
        ({"metadata": {"agentrl": 3}}, "expected an object"),
    ],
)
def test_a_wrong_turn_is_refused_with_its_field(change, complaint):
    with pytest.raises(FieldError, match=complaint):
        trace_row({"turns": [{**TURN, **change}]})


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        ([], "expected an object"),
        ({"turns": []}, "at least one turn"),
        ({"turns": [TURN, TURN]}, "two turns have the node_id 'a'"),
        ({"turns": [TURN], "schema_version": 2}, "schema_version': expected 1"),
        ({"turns": [TURN], "rewards": 1}, "unknown field 'rewards'"),
        ({"trace": {"turns": [TURN]}, "reward": "good"}, "reward"),
    ],
)
def test_a_wrong_trace_is_refused(trace, complaint):
    with pytest.raises(FieldError, match=complaint):
        trace_row(trace)


IDS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.booleans(), IDS, IDS, st.data()), min_size=1, max_size=6))
def test_every_masked_token_is_trained_once_in_its_own_context(steps):
    turns, whole = [], []
    for number, (continues, new, completion, data) in enumerate(steps):
        prompt = [*whole, *new] if continues and whole else new
        mask = data.draw(st.lists(st.integers(0, 1), min_size=len(completion), max_size=len(completion)))
        turns.append(
            {
                "node_id": str(number),
                "prompt_token_ids": prompt,
                "completion_token_ids": completion,
                "per_token_logps": [-1.0 - number] * len(completion),
                "loss_mask": [0] * len(prompt) + mask,
            }
        )
        whole = [*prompt, *completion]
    wanted = [
        ((*turn["prompt_token_ids"], *turn["completion_token_ids"])[: len(turn["prompt_token_ids"]) + at + 1], logprob)
        for turn in turns
        for at, (logprob, trained) in enumerate(
            zip(turn["per_token_logps"], turn["loss_mask"][len(turn["prompt_token_ids"]) :], strict=True)
        )
        if trained
    ]
    trajectories = list(joined(read_turns({"turns": turns})))
    found = [
        (tuple(trajectory.token_ids[: at + 1]), trajectory.logprobs[at])
        for trajectory in trajectories
        for at, trained in enumerate(trajectory.loss_mask)
        if trained
    ]
    assert sorted(found) == sorted(wanted)
