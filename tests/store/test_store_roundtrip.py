"""Any group is read back as it was written."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import DataError
from agentrl.store import TrajectoryStore
from agentrl.store import schema as stored
from agentrl.types.operation import Operation, OperationKind
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall, TurnReward
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

FRAMES_OF_A_WRITER = 30
"""Upper bound on the calls between an empty stack and the encoder."""


def plain(value: object) -> object:
    """All contents by name; tuples become lists."""
    if isinstance(value, Trajectory):
        return {"segments": plain(value.segments), "messages": plain(value.messages)}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def round_trip(groups: list[Group]) -> list[Group]:
    with tempfile.TemporaryDirectory() as folder:
        store = TrajectoryStore(Path(folder))
        store.write(3, groups)
        return store.groups(3)


text = st.text(st.characters(codec=None, exclude_categories=()) | st.sampled_from("\ufdd0\ud83d\ude00d8"), max_size=6)
number = st.floats(allow_nan=False)
integer = st.integers(-(2**63), 2**63 - 1)
count = st.integers(0, 2**31 - 1)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(text, json_value, max_size=2)
messages = st.lists(st.fixed_dictionaries({"role": text}, optional={"content": json_value}), max_size=2)
tasks = st.builds(
    Task,
    messages=messages,
    ground_truth=json_value,
    data_source=text,
    index=integer,
    uid=text,
    agent_name=st.none() | text,
    tools_kwargs=st.dictionaries(text, objects, max_size=2),
    interaction_kwargs=objects,
    extra_info=objects,
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    author = draw(st.sampled_from(Author))
    ids = draw(st.lists(count, min_size=1, max_size=4))
    media = draw(st.lists(text, max_size=2))
    if author is not Author.MODEL:
        return Segment(author, ids, media=media)
    logprobs = draw(st.lists(number, min_size=len(ids), max_size=len(ids)))
    first = draw(st.integers(0, len(ids)))
    spans = [VersionSpan(draw(integer), first), VersionSpan(draw(integer), len(ids) - first)]
    return Segment(author, ids, logprobs, spans, draw(number), media)


def in_their_trajectories(rollout: Rollout) -> Rollout:
    """With turn rewards only for existing trajectories, as every run writes them."""
    num_trajectories = max(1, len(rollout.trajectories))
    turns = rollout.turn_rewards
    rewards = [dataclasses.replace(turn, trajectory=turn.trajectory % num_trajectories) for turn in turns]
    return dataclasses.replace(rollout, turn_rewards=rewards)


trajectories = st.builds(Trajectory, st.lists(segments(), max_size=3), messages, number)
rollouts = st.builds(
    Rollout,
    trajectories=st.lists(trajectories, max_size=2),
    stop=st.sampled_from(Stop),
    rewards=st.dictionaries(st.just("score") | text, number, max_size=2),
    turn_rewards=st.lists(st.builds(TurnReward, integer, integer, text, number, st.none() | text), max_size=2),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=text,
            arguments=text,
            result=text,
            outcome=st.sampled_from(Outcome),
            duration_s=number,
            num_tokens=integer,
            reward=number,
            turn=integer,
            trajectory=integer,
        ),
        max_size=2,
    ),
    tool_rewards=st.dictionaries(text, number, max_size=2),
    error=st.none() | text,
    infra_failed=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    duration_s=number,
    operations=st.lists(st.builds(Operation, st.sampled_from(OperationKind), *[integer] * 7, detail=text), max_size=2),
).map(in_their_trajectories)


@pytest.mark.slow
@given(st.lists(st.builds(Group, tasks, st.lists(rollouts, min_size=1, max_size=2)), max_size=3))
def test_groups_come_back_as_they_were_written(groups: list[Group]) -> None:
    assert plain(round_trip(groups)) == plain(groups)


def test_the_schema_names_every_field_in_its_order() -> None:
    """Values are read by position, so a new dataclass field must not be forgotten here."""
    for holder, names in {
        Task: [*stored.TASK, "images"],  # image bytes are in files of their own, see store/media.py
        Segment: stored.SEGMENT.names,
        VersionSpan: stored.SPAN.names,
        ToolCall: stored.TOOL_CALL.names,
        TurnReward: stored.TURN_REWARD.names,
    }.items():
        assert [field.name for field in dataclasses.fields(holder)] == names
    assert list(Operation._fields) == stored.OPERATION.names
    assert {field.name for field in dataclasses.fields(Rollout)} == {
        *stored.ROLLOUT,
        *("trajectories", "operations", "facts"),
    }


def test_equal_tasks_are_separate_groups() -> None:
    task = Task([], uid="")
    groups = round_trip([Group(task, [Rollout([], Stop.ERROR)] * 2), Group(task, [Rollout([], Stop.ERROR)])])
    assert [len(group.rollouts) for group in groups] == [2, 1]
    assert round_trip([]) == []


def test_numbers_that_are_not_finite_are_kept() -> None:
    task = Task([], ground_truth=math.nan, extra_info={"limit": math.inf}, uid="u")
    (group,) = round_trip([Group(task, [Rollout([], Stop.FINISHED, {"length": math.nan})])])
    assert math.isnan(group.rollouts[0].rewards["length"])
    assert math.isnan(group.task.ground_truth)
    assert group.task.extra_info == {"limit": math.inf}


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


def too_deep_for_an_empty_stack(depth: int) -> bool:
    with ThreadPoolExecutor(1) as pool:
        return isinstance(pool.submit(json.dumps, nested(depth)).exception(), RecursionError)


@pytest.mark.slow
def test_arguments_at_the_maximum_depth_are_kept() -> None:
    """A parser called on an empty stack can nest deeper than a writer on this stack. The limit depends on Python."""
    depth = bisect_left(range(1 << 15), True, key=too_deep_for_an_empty_stack) - FRAMES_OF_A_WRITER
    deep = nested(depth)
    (group,) = round_trip(
        [Group(Task([]), [Rollout([Trajectory([], [{"role": "user", "content": deep}])], Stop.ERROR)])]
    )
    content = group.rollouts[0].trajectories[0].messages[0]["content"]
    if sys.version_info < (3, 12):  # since 3.12, calls from Python to Python do not count
        with pytest.raises(RecursionError):
            json.dumps(deep)  # must be too deep for this stack, or the test shows nothing
    for _ in range(depth):
        (content,) = content
    assert content == "x"


@pytest.mark.parametrize(
    ("group", "complaint"),
    [
        (Group(Task([], {"a": {1}}, uid="u7"), [Rollout([], Stop.ERROR)]), "task 'u7': its ground_truth .* set"),
        (Group(Task([]), [Rollout([], Stop.ERROR, seed=-1)]), "step 3: column 'seed'"),
        (Group(Task([]), [Rollout([], Stop.ERROR, {"score": None})]), "column 'rewards' .* 'value' must not be None"),
        (Group(Task([]), [Rollout([], Stop.ERROR, error=3)]), "step 3: column 'error'"),
    ],
)
def test_values_that_cannot_be_kept_are_named_and_leave_no_file(group: Group, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=complaint) as raised:
        TrajectoryStore(tmp_path).write(3, [group])
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
