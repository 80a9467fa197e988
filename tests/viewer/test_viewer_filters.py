"""Filters and sorting give the same result as a loop over all rollouts."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewer_runs import Asked, group, rollout, write_run

from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Outcome, Stop
from agentrl.viewer.index import Snapshot
from agentrl.viewer.json_response import shown_choices
from agentrl.viewer.summary import SUMMARY

REWARDS, STOPS = (0.0, 0.5, 1.0, -1.0), (Stop.FINISHED, Stop.MAX_TURN_TOKENS, Stop.ERROR)
TOOLS, OUTCOMES = ("search", "<b>", "sh\ud83d"), (Outcome.OK, Outcome.TIMEOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two splits of steps whose rollouts differ in every field with a filter."""
    folder = tmp_path_factory.mktemp("run")

    def one(number: int):
        calls = tuple((TOOLS[(number + place) % 3], OUTCOMES[number * place % 2]) for place in range(number % 4))
        return rollout(
            reward=REWARDS[number % 4],
            stop=STOPS[number % 3],
            error="it broke" if number % 3 == 2 else None,
            calls=calls,
            ids=tuple(range(1 + number % 5)),
            rewards={"style": float(number % 7)} if number % 2 else None,
            duration_s=float(number * 7 % 11),
        )

    for split, steps in {"train": (1, 2, 9), "val": (0, 9)}.items():
        groups = {
            step: [
                group(
                    f"{split}{step}-{row}",
                    *map(one, range(step + row, step + row + 5)),
                    source=f"set{row % 2}",
                    index=row,
                )
                for row in range(3)
            ]
            for step in steps
        }
        write_run(folder, groups, split)
    return folder


@pytest.fixture(scope="module")
def rows(folder):
    """(split, stored rollout) in table order: newest step first, then as written."""
    stores = {split: TrajectoryStore(folder / "trajectories" / split) for split in ("train", "val")}
    places = sorted(((step, split) for split in stores for step in stores[split].steps), key=lambda at: (-at[0], at[1]))
    return [(split, stored) for step, split in places for stored in stores[split].scan(steps=[step])]


@pytest.fixture(scope="module")
def asked(folder):
    asked = Asked(folder)
    yield asked
    asked.close()


TESTS = {
    "split": lambda split, stored, value: split == value,
    "source": lambda split, stored, value: stored.task.data_source == value,
    "index": lambda split, stored, value: stored.task.index == int(value),
    "uid": lambda split, stored, value: stored.task.uid == value,
    "stop": lambda split, stored, value: stored.rollout.stop == value,
    "excluded": lambda split, stored, value: stored.excluded == value,
    "step_min": lambda split, stored, value: stored.step >= int(value),
    "step_max": lambda split, stored, value: stored.step <= int(value),
    "reward_min": lambda split, stored, value: stored.rollout.reward >= float(value),
    "reward_max": lambda split, stored, value: stored.rollout.reward <= float(value),
    "failed": lambda split, stored, value: stored.rollout.failed or stored.rollout.error is not None,
}
KEYS = {
    "step": lambda stored: stored.step,
    "reward": lambda stored: stored.rollout.reward,
    "duration_s": lambda stored: stored.rollout.duration_s,
    "calls": lambda stored: len(stored.rollout.tool_calls),
    "turns": lambda stored: stored.rollout.trajectories[0].num_turns,
    "tokens": lambda stored: len(stored.rollout.trajectories[0].token_ids),
    "trained": lambda stored: stored.rollout.trajectories[0].num_trained_tokens,
    "stop": lambda stored: stored.rollout.stop,
    "uid": lambda stored: stored.task.uid,
}
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "split": st.sampled_from(["train", "val", "other"]),
        "source": st.sampled_from(["set0", "set1", "<i>"]),
        "index": st.sampled_from(["0", "2"]),
        "uid": st.sampled_from(["train2-1", "val9-0"]),
        "stop": st.sampled_from(STOPS),
        "excluded": st.sampled_from(["failed", "stale"]),
        "tool": st.sampled_from([*TOOLS[:2], "none"]),
        "outcome": st.sampled_from(OUTCOMES),
        "step_min": st.sampled_from(["0", "2"]),
        "step_max": st.sampled_from(["2", "9"]),
        "reward_min": st.sampled_from(["0", "0.5", "-1"]),
        "reward_max": st.sampled_from(["0.5", "-0.5", "inf"]),
        "failed": st.just("1"),
        "sort": st.builds(str.__add__, st.sampled_from(["", "-"]), st.sampled_from(sorted(KEYS))),
    },
)


def wanted(rows, words):
    calls = [words.get("tool"), words.get("outcome")]
    kept = [
        stored
        for split, stored in rows
        if all(test(split, stored, words[name]) for name, test in TESTS.items() if name in words)
        and (
            calls == [None, None]
            or any(
                call.name == (calls[0] or call.name) and call.outcome == (calls[1] or call.outcome)
                for call in stored.rollout.tool_calls
            )
        )
    ]
    if sort := words.get("sort"):
        kept.sort(key=KEYS[sort.removeprefix("-")], reverse=sort.startswith("-"))  # stable in both directions
    return [(stored.step, stored.task.uid, stored.number) for stored in kept]


@given(words=WORDS)
def test_filters_and_sorting_equal_a_scan_over_all_rollouts(asked, rows, words):
    answer = asked.json("api/rows", limit=1000, **words)
    assert [(row["step"], row["uid"], row["number"]) for row in answer["rows"]] == wanted(rows, words)
    assert answer["matched"] == len(answer["rows"])
    assert answer["total"] == len(rows)


def test_a_row_describes_its_rollout(asked, rows):
    split, stored = next((split, stored) for split, stored in rows if len(stored.rollout.tool_calls) == 3)
    (row,) = asked.json("api/rows", uid=stored.task.uid, number=stored.number, split=split)["rows"]
    rollout_, (trajectory,) = stored.rollout, stored.rollout.trajectories
    assert row["tools"] == [call.name for call in rollout_.tool_calls]
    assert row["outcomes"] == [call.outcome for call in rollout_.tool_calls]
    assert (row["turns"], row["tokens"]) == (trajectory.num_turns, len(trajectory.token_ids))
    assert (row["trained"], row["duration_s"]) == (trajectory.num_trained_tokens, rollout_.duration_s)
    assert row["reward/style"] == rollout_.rewards.get("style")


def test_pages_concatenate_to_the_complete_result(asked, rows):
    pages = [
        asked.json("api/rows", offset=offset, limit=7, sort="-reward")["rows"] for offset in range(0, len(rows), 7)
    ]
    assert [row for page in pages for row in page] == asked.json("api/rows", limit=1000, sort="-reward")["rows"]


def test_neighbours_are_the_adjacent_filtered_rows(asked):
    words = {"stop": "finished", "sort": "duration_s"}
    rows = asked.json("api/rows", limit=1000, **words)["rows"]
    for at in (0, 1, len(rows) - 1):
        place = {f"at_{name}": rows[at][name] for name in ("split", "step", "uid", "number")}
        beside = asked.json("api/neighbours", **place, **words)
        assert beside["position"] == at
        assert beside["before"] == (rows[at - 1] if at else None)
        assert beside["after"] == (rows[at + 1] if at + 1 < len(rows) else None)


def test_filters_offer_only_existing_values(asked):
    choices = asked.json("api/rows")["choices"]
    assert choices["split"] == ["train", "val"]
    assert choices["tools"] == sorted(TOOLS)
    assert choices["steps"] == [0, 9]


@pytest.mark.slow
def test_the_choices_of_a_snapshot_are_computed_once_and_freed_with_it():
    snapshots = [Snapshot(number, [], SUMMARY.empty_table(), 0) for number in range(5)]
    choices = [shown_choices(each) for each in snapshots]
    assert all(shown_choices(each) is known for each, known in zip(snapshots, choices, strict=True))
    gone = [weakref.ref(each) for each in snapshots]
    snapshots.clear()
    gc.collect()
    assert [each() for each in gone] == [None] * 5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"reward_min": "much"}, "'reward_min' must be a number, not 'much'"),
        ({"reward_min": "nan"}, "'reward_min' must be a number, not 'nan'"),
        ({"index": str(2**63)}, f"'index' must be a number, not '{2**63}'"),
        ({"spilt": "val"}, "there is no filter 'spilt': did you mean 'split'?"),
        ({"sort": "-rewrad"}, "cannot sort by 'rewrad': did you mean 'reward'?"),
        ({"sort": "tools"}, "cannot sort by 'tools'"),
        ({"offset": "x"}, "'offset' must be a whole number, not 'x'"),
        ({"run": "3"}, "no run has the number 3"),
    ],
)
def test_invalid_queries_are_one_line(asked, words, line):
    answer = asked.get("api/rows", **words)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(line)


def test_guards_that_no_rollout_raised_are_idle(view, tmp_path):
    rewards = {"format": 0.0, "guard/length": 0.0, "guard/repetition": 0.0}
    groups = [group("a", rollout(rewards=rewards), rollout(rewards={**rewards, "guard/repetition": 1.0}), rollout())]
    choices = view(write_run(tmp_path / "guarded", {1: groups})).json("api/rows")["choices"]
    assert choices["idle"] == ["reward/guard/length"]
