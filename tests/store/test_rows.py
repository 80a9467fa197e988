"""Exports of rollouts as rows: dialogues for SFT, preference pairs, and tasks for RL."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.config.data import DataConfig
from agentrl.data.dialogues import load_dialogues
from agentrl.data.tasks import load_tasks
from agentrl.errors import DataError
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.store.exporters.dialogues import dialogue_rows
from agentrl.store.exporters.pairs import pair_rows
from agentrl.store.exporters.selection import COLUMNS, Selection, saved_tools
from agentrl.store.exporters.tasks import task_rows
from agentrl.store.exporters.writing import write_lines, write_table
from agentrl.store.importers.formats import messages_row
from agentrl.store.importers.importing import import_rollouts
from agentrl.types.messages import Message
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("add", "see")]


def call(arguments: object) -> Message:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def rollout(reward: float, *answer: Message | str, stop: Stop = Stop.FINISHED, prompt: str = "1+1?") -> Rollout:
    said = [Message(role="assistant", content=part) if isinstance(part, str) else part for part in answer]
    trajectory = Trajectory([], [{"role": "user", "content": prompt}, *said])
    return Rollout([trajectory], stop, {"score": reward})


def group(*rollouts: Rollout, index: int = 0, **task: object) -> Group:
    return Group(Task([{"role": "user", "content": "1+1?"}], "2", "sums", index, f"u{index}", **task), list(rollouts))


def groups_of(folder: Path, *groups: Group) -> list[list[StoredRollout]]:
    """The groups as an export reads them."""
    TrajectoryStore(folder / "store").write(1, groups)
    read = list(TrajectoryStore(folder / "store").scan(columns=COLUMNS))
    return [[stored for stored in read if stored.task.uid == group.uid] for group in groups]


def test_exported_dialogues_load_for_sft(tmp_path: Path) -> None:
    tool: Message = {"role": "tool", "tool_call_id": "c", "content": "2"}
    taken = rollout(1.0, call({"a": 1}), tool, "2 \ud83d")
    groups = groups_of(tmp_path, group(taken, rollout(0.0, "3")), group(rollout(1.0, "2"), index=1))
    selection = Selection(min_reward=0.5, tools=TOOLS)
    assert write_lines(tmp_path / "sft.jsonl", dialogue_rows(groups, selection)) == 2
    assert selection.skipped == {"rollouts with a reward below 0.5": 1}
    first, second = load_dialogues([str(tmp_path / "sft.jsonl")], DataConfig())
    assert first.messages == taken.trajectories[0].messages
    assert [schema.name for schema in first.tools or ()] == ["add", "see"]
    assert second.messages[-1]["content"] == "2"


def test_exported_thoughts_are_in_the_content(tmp_path: Path) -> None:
    """A chat template need not read `reasoning_content`."""
    told_apart: Message = {"role": "assistant", "content": "2", "reasoning_content": "One and one."}
    groups = groups_of(tmp_path, group(rollout(1.0, told_apart), rollout(0.0, "3")))
    (row, _), (pair,) = dialogue_rows(groups, Selection()), pair_rows("best", 0.0)(groups, Selection())
    text = "<think>\nOne and one.\n</think>\n\n2"
    assert row["messages"][-1] == pair["chosen"][-1] == {"role": "assistant", "content": text}


def test_trajectories_without_weight_are_not_exported(tmp_path: Path) -> None:
    main, side = rollout(1.0, "2"), rollout(0.0, "A title")
    main.trajectories.insert(0, side.trajectories[0])
    main.trajectories[0].weight = 0.0
    groups = groups_of(tmp_path, group(main, rollout(0.0, "3")))
    texts = [row["messages"][-1]["content"] for row in dialogue_rows(groups, Selection())]
    assert texts == ["2", "3"]
    (pair,) = pair_rows("best", 0.0)(groups, Selection())
    assert pair["chosen"][-1]["content"] == "2"


def test_failed_and_malformed_rollouts_are_skipped_and_reported(tmp_path: Path) -> None:
    failed, malformed = rollout(9.0, "2", stop=Stop.ERROR), rollout(1.0, call('{"a": '))
    several = Rollout([rollout(1.0, "a").trajectories[0], rollout(1.0, "b").trajectories[0]], Stop.FINISHED)
    selection = Selection()
    rows = list(dialogue_rows(groups_of(tmp_path, group(failed, malformed, several)), selection))
    assert [row["messages"][-1]["content"] for row in rows] == ["a", "b"]  # one row per trajectory
    assert selection.skipped == {"failed rollouts": 1, "conversations that cannot be trained on": 1}
    (example,) = selection.examples.values()
    assert example.startswith("rollout 1 of 'u0', field 'messages[1].tool_calls[0].arguments': not JSON")


def test_a_task_offers_the_tools_it_selects_or_was_imported_with(tmp_path: Path) -> None:
    selected = group(rollout(1.0, "2"), extra_info={"tool_selection": ["see"]})
    own = group(rollout(1.0, "2"), index=1, extra_info={"tools": TOOLS[:1]})
    neither = group(rollout(1.0, "2"), index=2)
    rows = dialogue_rows(groups_of(tmp_path, selected, own, neither), Selection(tools=saved_tools(json.dumps(TOOLS))))
    assert [row["tools"] for row in rows] == [TOOLS[1:], TOOLS[:1], TOOLS]
    for text in ("{", "{}"):
        with pytest.raises(DataError, match="the saved tools of the run are not"):
            saved_tools(text)


def pairs(rows: Sequence[object]) -> list[tuple[str, str, float, float]]:
    return [
        (row["chosen"][0]["content"], row["rejected"][0]["content"], row["chosen_reward"], row["rejected_reward"])
        for row in rows
    ]


def test_the_best_of_a_group_is_preferred_to_its_worst(tmp_path: Path) -> None:
    several = Rollout(rollout(1.0, "").trajectories * 2, Stop.FINISHED, {"score": 9.0})
    mixed = group(rollout(0.5, "b"), rollout(1.0, "a"), rollout(0.0, "c"), rollout(1.0, "A"), several)
    equal = group(rollout(1.0, "a"), rollout(1.0, "b"), index=1)
    other = group(rollout(1.0, "a", prompt="?"), rollout(0.0, "b"), index=2)
    groups, selection = groups_of(tmp_path, mixed, equal, other), Selection(tools=TOOLS)
    rows = list(pair_rows("best", 0.0)(groups, selection))
    assert pairs(rows) == [("a", "c", 1.0, 0.0)]
    assert rows[0]["prompt"] == [{"role": "user", "content": "1+1?"}]
    assert rows[0]["tools"] == TOOLS
    assert selection.skipped == {
        "rollouts with several conversations": 1,
        "groups without two rollouts with sufficiently different rewards": 1,
        "pairs with different prompts": 1,
    }


def test_all_pairs_with_a_large_enough_score_difference(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, group(rollout(0.5, "b"), rollout(1.0, "a"), rollout(0.0, "c"), rollout(1.0, "A")))
    every = [("a", "b", 1.0, 0.5), ("b", "c", 0.5, 0.0), ("A", "b", 1.0, 0.5), ("a", "c", 1.0, 0.0)]
    assert pairs(list(pair_rows("all", 0.0)(groups, Selection()))) == [*every, ("A", "c", 1.0, 0.0)]
    assert pairs(list(pair_rows("all", 1.0)(groups, Selection()))) == [("a", "c", 1.0, 0.0), ("A", "c", 1.0, 0.0)]
    assert not list(pair_rows("all", 1.0)(groups, Selection(min_reward=1.5)))  # no rollout is good enough to be chosen


def test_tasks_in_verls_columns_once_each(tmp_path: Path) -> None:
    plain = group(rollout(1.0, "2"), rollout(0.0, "3"))
    again = group(rollout(1.0, "2"))
    kwargs = {"add": {"create_kwargs": {"limit": 3}, "execute_kwargs": {}}}
    rich = Task([{"role": "user", "content": "?"}], {"a": [1]}, "s", 5, "v", "tool_agent", kwargs, {}, {"level": 2})
    groups = groups_of(tmp_path, plain, Group(rich, [rollout(1.0, "2")]), again)
    assert write_table(tmp_path / "tasks.parquet", task_rows(groups, Selection())) == 2
    first, second = pq.read_table(tmp_path / "tasks.parquet").to_pylist()
    assert first["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert (first["ability"], first["extra_info"]["index"], first["extra_info"]["split"]) == ("sums", 0, "train")
    assert second["reward_model"]["ground_truth"] == '{"a":[1]}'
    loaded = load_tasks([str(tmp_path / "tasks.parquet")], DataConfig())
    assert [task.messages for task in loaded] == [plain.task.messages, rich.messages]
    assert loaded[1].tools_kwargs == {"add": {"create_kwargs": {"limit": 3}}}
    assert (loaded[1].agent_name, loaded[1].extra_info["level"]) == ("tool_agent", 2)


def test_rows_that_no_column_can_hold_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tasks.parquet: the rows do not fit the columns"):
        write_table(tmp_path / "tasks.parquet", [{"a": 1}, {"a": "x"}])
    with pytest.raises(DataError, match="cannot be written"):
        write_lines(tmp_path / "nowhere/rows.jsonl", [])
    assert list(tmp_path.iterdir()) == []


text = st.text(st.characters(codec=None, exclude_categories=()) | st.sampled_from("\ufdd0\ud83d\n\u2028"), max_size=5)
arguments = st.dictionaries(text, st.integers() | text | st.none(), max_size=2)
turns = st.builds(call, arguments).map(lambda said: [said, Message(role="tool", tool_call_id="c", content="2")])
answers = st.lists(turns, max_size=2).flatmap(lambda calls: text.map(lambda last: [*chain.from_iterable(calls), last]))
scores = st.floats(allow_nan=False, allow_infinity=False)
rollouts = st.builds(lambda reward, answer: rollout(reward, *answer), scores, answers)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.lists(rollouts, min_size=1, max_size=3), min_size=1, max_size=3))
def test_dialogues_that_are_imported_again_are_the_same_rollouts(siblings: list[list[Rollout]]) -> None:
    groups = [group(*rollouts, index=index) for index, rollouts in enumerate(siblings)]
    with tempfile.TemporaryDirectory() as name:
        folder, selection = Path(name), Selection()
        write_lines(folder / "rows.jsonl", dialogue_rows(groups_of(folder, *groups), selection))
        assert not selection.skipped
        import_rollouts(folder / "rows.jsonl", folder / "again", "messages", messages_row)
        again = TrajectoryStore(folder / "again").groups(1)
    assert [group.uid for group in again] == [group.uid for group in groups]
    for one, other in zip(groups, again, strict=True):
        assert (one.task.messages, one.task.ground_truth) == (other.task.messages, other.task.ground_truth)
        assert [done.rewards for done in one.rollouts] == [done.rewards for done in other.rollouts]
        assert [done.trajectories[0].messages for done in one.rollouts] == [
            done.trajectories[0].messages for done in other.rollouts
        ]
