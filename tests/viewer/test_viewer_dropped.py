"""Groups that no step trained on are listed on request, with their reason."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from viewer_runs import HOSTILE, group, rollout, write_run

from agentrl.store import TrajectoryStore
from agentrl.store.text import writable
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout, Stop

MARKUP = HOSTILE[:-30]  # names of rewards cannot have lone surrogates


def write_dropped(folder, step: int, reasons: dict[str, Excluded], groups: list[Group]):
    """Save `groups` as dropped during `step`; `reasons`: uid -> the reason for each of its rollouts."""
    store = TrajectoryStore(folder / "trajectories/excluded", split="excluded")
    excluded = {f"{each.uid}/{number}": reasons[each.uid] for each in groups for number in range(len(each.rollouts))}
    return store.write(step, groups, excluded=excluded)


def summary(**rewards: float) -> Rollout:
    return Rollout([], Stop.FINISHED if rewards else Stop.ABORTED, rewards)


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, {1: [group("trained", rollout(reward=1.0))], 2: [group("later", rollout())]})
    groups = [group("even", summary(score=0.5, style=2.0), summary(score=0.5)), group("old", *[summary()] * 3)]
    write_dropped(tmp_path, 1, {"even": Excluded.EQUAL_REWARDS, "old": Excluded.STALE}, groups)
    return tmp_path


def listed(asked, **words: object) -> list[tuple[object, ...]]:
    rows = asked.json("api/rows", **words)["rows"]
    return [(row["step"], row["uid"], row["group_size"], row["excluded"], row["reward"]) for row in rows]


EVEN, OLD = (1, "even", 2, "equal_rewards", 0.5), (1, "old", 3, "stale", None)
TRAINED, LATER = (1, "trained", 1, None, 1.0), (2, "later", 1, None, 0.0)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ({}, [LATER, TRAINED]),
        ({"step": "1"}, [TRAINED]),
        ({"split": "excluded"}, [EVEN, EVEN, OLD, OLD, OLD]),
        ({"split": "excluded", "step": "2"}, []),
        ({"excluded": "stale"}, [OLD, OLD, OLD]),
        ({"excluded": "equal_rewards", "reward_min": "0.5"}, [EVEN, EVEN]),
        ({"uid": "even"}, [EVEN, EVEN]),
    ],
)
def test_dropped_groups_are_listed_if_split_reason_or_uid_asks_for_them(view, folder, words, wanted):
    assert listed(view(folder), **words) == wanted


def test_the_numbers_of_rollouts_leave_dropped_groups_out_until_they_are_listed(view, folder):
    asked = view(folder)
    assert asked.json("api/state")["runs"][0]["num_rollouts"] == 2
    counts = [
        [asked.json("api/rows", **words)[name] for name in ("matched", "total", "num_hidden")]
        for words in ({}, {"excluded": "stale"})
    ]
    assert counts == [[2, 2, 5], [3, 7, 0]]
    assert asked.json("api/rows")["choices"]["excluded"] == ["equal_rewards", "stale"]


def test_a_dropped_rollout_opens_with_reason_and_rewards(view, folder):
    asked = view(folder)
    told = asked.json("api/rollout", split="excluded", step=1, uid="even", number=0)
    assert (told["excluded"], told["rewards"], told["trajectories"]) == (
        "equal_rewards",
        {"score": 0.5, "style": 2.0},
        [],
    )
    place = {"at_split": "excluded", "at_step": 1, "at_uid": "even", "at_number": 1}
    assert asked.json("api/neighbours", split="excluded", **place)["after"]["uid"] == "old"
    assert asked.json("api/excerpts", split="excluded")["rows"][0]["prompt"] == "?"


def test_hostile_text_of_dropped_groups_arrives_as_it_was_written(view, folder):
    hostile = Rollout([], Stop.ERROR, {MARKUP: 1.0}, error=HOSTILE)
    write_dropped(folder, 2, {HOSTILE: Excluded.FAILED}, [group(HOSTILE, hostile, source=HOSTILE)])
    asked = view(folder)
    (row,) = asked.json("api/rows", excluded="failed")["rows"]
    assert (row["uid"], row["source"], row[f"reward/{MARKUP}"]) == (HOSTILE, HOSTILE, 1.0)
    assert asked.json("api/rollout", split="excluded", step=2, uid=writable(HOSTILE), number=0)["error"] == HOSTILE


def test_an_unknown_reason_is_listed_as_text_and_its_rollout_is_refused_in_one_line(view, folder):
    path = folder / "trajectories/excluded/step-000001.parquet"
    table, reason = pq.read_table(path), "<script>window.hit=1</script>"
    place = table.schema.get_field_index("excluded")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array([reason] * len(table))), path)
    asked = view(folder)
    assert {row[3] for row in listed(asked, excluded=reason)} == {reason}
    answer = asked.get("api/rollout", split="excluded", step=1, uid="even", number=0)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]


@pytest.mark.slow
def test_a_damaged_file_of_dropped_groups_is_named_and_the_rest_works(view, folder):
    path = folder / "trajectories/excluded/step-000001.parquet"
    path.write_bytes(b"PAR1 nonsense")
    asked = view(folder)
    (problem,) = asked.json("api/state")["runs"][0]["problems"]
    assert str(path) in problem
    assert listed(asked) == [LATER, TRAINED]
