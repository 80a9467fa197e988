"""Files that appear, change, vanish or are damaged while a run is viewed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from viewer_runs import TOKEN, Asked, group, rollout, write_metrics, write_run

from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Author, Segment, Trajectory
from agentrl.viewer.summary import summarize


def until(asked, wanted, timeout_s: float = 60.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if wanted(state := asked.json("api/state")["runs"][0]):
            return state
        time.sleep(0.05)
    raise AssertionError(state)


@pytest.mark.slow
def test_index_follows_new_changed_and_deleted_steps(view, tmp_path):
    asked = view(write_run(tmp_path, {1: [group("a", rollout())]}))
    write_run(tmp_path, {2: [group("b", rollout(), rollout())]})
    until(asked, lambda state: state["num_rollouts"] == 3)
    assert [row["uid"] for row in asked.json("api/rows")["rows"]] == ["b", "b", "a"]
    write_run(tmp_path, {2: [group("c", rollout())]})
    until(asked, lambda state: state["num_rollouts"] == 2)
    (tmp_path / "trajectories/train/step-000002.parquet").unlink()
    until(asked, lambda state: state["num_rollouts"] == 1)


@pytest.mark.slow
def test_a_run_without_rollouts_shows_its_curves_and_waits(view, tmp_path):
    write_metrics(tmp_path, [{"step": 1, "loss": 2.0}])
    asked = view(tmp_path)
    assert asked.json("api/curves")["series"] == {"loss": [2.0]}
    assert asked.json("api/rows")["total"] == 0
    write_run(tmp_path, {1: [group("a", rollout())]}, split="val")
    until(asked, lambda state: state["num_rollouts"] == 1)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("damage", [b"", b"PAR1 nonsense", None])
def test_a_damaged_file_is_named_and_the_rest_works(view, tmp_path, damage):
    write_run(tmp_path, {step: [group(f"g{step}", rollout())] for step in (1, 2, 3)})
    path = tmp_path / "trajectories/train/step-000002.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    asked = view(tmp_path)
    (state,) = asked.json("api/state")["runs"]
    (problem,) = state["problems"]
    assert str(path) in problem
    assert [row["step"] for row in asked.json("api/rows")["rows"]] == [3, 1]
    path.write_bytes(content)
    assert until(asked, lambda state: state["num_rollouts"] == 3)["problems"] == []


@pytest.mark.slow
def test_an_internal_error_is_shown_with_its_file_and_the_page_still_works(view, tmp_path, monkeypatch):
    def mistaken(path, split):
        if path.name == "step-000002.parquet":
            raise IndexError("list index out of range")
        return summarize(path, split)

    monkeypatch.setattr("agentrl.viewer.index.summarize", mistaken)
    asked = view(write_run(tmp_path, {step: [group(f"g{step}", rollout())] for step in (1, 2, 3)}))
    (state,) = asked.json("api/state")["runs"]
    path = tmp_path / "trajectories/train/step-000002.parquet"
    assert state["problems"] == [f"{path}: IndexError: list index out of range"]
    assert state["num_rollouts"] == 2
    write_run(tmp_path, {4: [group("new", rollout())]})
    until(asked, lambda state: state["num_rollouts"] == 3)


@pytest.mark.slow
def test_a_deleted_run_is_reported_and_a_restored_one_is_read(view, tmp_path):
    folder = write_run(tmp_path / "run", {1: [group("a", rollout())]})
    asked = view(folder)
    folder.rename(tmp_path / "moved")
    state = until(asked, lambda state: state["problems"])
    assert state["problems"] == [f"the folder '{folder}' was deleted"]
    place = {"split": "train", "step": 1, "uid": "a", "number": 0}
    assert asked.get("api/rollout", **place).status_code == 400
    assert asked.json("api/curves")["steps"] == []
    (tmp_path / "moved").rename(folder)
    until(asked, lambda state: not state["problems"])
    assert asked.json("api/rollout", **place)["uid"] == "a"


@pytest.mark.slow
def test_concurrent_requests_while_files_change(tmp_path):
    steps = range(1, 41)
    folder = write_run(tmp_path, {step: [group(f"g{step}", rollout(), rollout())] for step in steps})
    asked = Asked(folder, wait=False)
    paths = ["api/rows", "api/state", "api/curves", "api/neighbours", "api/rollout"]
    place = {"split": "train", "step": 7, "uid": "g7", "number": 0}

    def ask(number: int) -> int:
        path = paths[number % len(paths)]
        words = place if path == "api/rollout" else {"q": "done"} if path == "api/rows" and number % 2 else {}
        if number % 10 == 0:
            (folder / f"trajectories/train/step-{20 + number // 10:06d}.parquet").unlink()
        return asked.get(path, **words).status_code

    with ThreadPoolExecutor(10) as together:
        assert set(together.map(ask, range(100))) == {200}
    assert until(asked, lambda state: state["num_rollouts"] == 60)["problems"] == []
    asked.close()


def test_unchanged_index_returns_304(view, tmp_path):
    asked = view(write_run(tmp_path, {1: [group("a", rollout())]}))
    tag = asked.get("api/state").headers["etag"]
    again = {"headers": {"if-none-match": tag}}
    assert asked.client.get(f"/{TOKEN}/api/state", **again).status_code == 304
    write_metrics(tmp_path, [{"step": 1, "loss": 1.0}])
    assert asked.client.get(f"/{TOKEN}/api/state", **again).status_code == 200


def test_curves_have_gaps_where_a_step_has_no_number_and_warnings_their_step(view, tmp_path):
    write_metrics(tmp_path, [{"step": 1, "a": 1.23456789, "b": None}, {"step": 2, "a": "<b>", "c": 3}])
    write_metrics(tmp_path, [{"step": 2, "warning": "<i>"}, {"no step": 1}], "warnings.jsonl")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "a"')  # a run that is still writing
    curves = view(tmp_path).json("api/curves")
    assert curves["steps"] == [1, 2]
    assert curves["series"] == {"a": [1.234568, None], "b": [None, None], "c": [None, 3.0]}
    assert curves["warnings"] == [{"step": 2, "text": "<i>"}]
    assert curves["axes"] == {}


def test_curves_have_measured_seconds_and_tokens_per_step(view, tmp_path):
    rows = [
        {"step": 0, "val/success": 0.5},
        *({"step": n, "timing_s/step": 2.0, "perf/tokens_per_s": 10.0 * n} for n in (1, 2)),
    ]
    write_metrics(tmp_path, rows)
    assert view(tmp_path).json("api/curves")["axes"] == {"time": [0.0, 2.0, 4.0], "tokens": [0.0, 20.0, 60.0]}


def test_several_trajectories_are_counted_together_and_imported_rollouts_have_no_tokens(tmp_path):
    demonstration = Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.DEMONSTRATION, [2, 3])])
    rollouts = [
        Rollout([demonstration, demonstration], Stop.FINISHED),
        Rollout([Trajectory()], Stop.FINISHED),
        Rollout([], Stop.ERROR),
    ]
    write_run(tmp_path, {1: [group("a", *rollouts)]})
    table = summarize(tmp_path / "trajectories/train/step-000001.parquet", "train")
    assert table["turns"].to_pylist() == [2, 0, 0]
    assert table["tokens"].to_pylist() == [6, 0, 0]
    assert table["trained"].to_pylist() == [4, 0, 0]
    assert table["failed"].to_pylist() == [False, False, True]
