"""Calls to trackers: metrics always, warnings and texts if supported; and traces of chosen steps."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agentrl.reporting.console import ConsoleTracker
from agentrl.reporting.health.monitor import Health
from agentrl.store import TrajectoryStore
from agentrl.telemetry.base import Generation, TrackedRun, trackers
from agentrl.telemetry.jsonl import JsonlTracker
from agentrl.trainer.records import Records
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

WORDS = {1: "What is 1+1? ", 2: "<calc>1+1</calc>", 3: "[2]", 4: "It is 2."}
BAD = {"actor/ppo_kl": 0.5}


class Deaf:
    """A tracker that supports metrics only."""

    def __init__(self):
        self.told = []

    def log(self, step, metrics):
        self.told.append((step, metrics))

    def close(self):
        pass


def text_of(token_ids):
    return "".join(WORDS[token] for token in token_ids)


def group(uid, scores=(1.0, 0.0)):
    model = [Segment(Author.MODEL, [token], [-0.1], (VersionSpan(0, 1),)) for token in (2, 4)]
    trajectory = Trajectory([Segment(Author.PROMPT, [1]), model[0], Segment(Author.TOOL, [3]), model[1]])
    task = Task([], ground_truth="2", uid=uid)
    return Group(task, [Rollout([trajectory], Stop.FINISHED, {"score": score}) for score in scores])


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_warnings_and_generations_reach_trackers_that_accept_them(tmp_path):
    deaf, jsonl = Deaf(), JsonlTracker(tmp_path / "metrics.jsonl")
    records = Records([deaf, jsonl], Health(), 3, text_of)
    records.log_validation(0, [group("a"), group("b")])
    records.log(0, BAD)  # a validation before the first step says nothing about training
    records.log(1, BAD)
    records.log(2, BAD)
    jsonl.close()
    assert deaf.told == [(0, BAD), (1, BAD), (2, BAD)]
    (warning,) = rows(tmp_path / "warnings.jsonl")
    assert warning["step"] == 1
    assert "KL from the sampling policy is 0.5" in warning["warning"]
    generations = rows(tmp_path / "generations.jsonl")
    assert [row["score"] for row in generations] == [1.0, 0.0, 1.0]
    assert generations[0] == {
        "step": 0,
        "input": "What is 1+1? ",
        "output": "<calc>1+1</calc>[2]It is 2.",
        "ground_truth": "2",
        "score": 1.0,
        "stop": "finished",
    }


def test_generations_are_logged_only_on_request(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    Records([tracker], Health(), 0, text_of).log_validation(1, [group("a")])
    tracker.close()
    assert not (tmp_path / "generations.jsonl").exists()


def test_a_resumed_run_drops_later_warnings_and_generations(tmp_path):
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        tracker.log_warning(step, "oh")
        tracker.log_generations(step, [Generation("a", "b", "c", 0.0, "finished")])
    tracker.close()
    JsonlTracker(tmp_path / "metrics.jsonl", resumed_at=1).close()
    for name in ("warnings.jsonl", "generations.jsonl"):
        assert [row["step"] for row in rows(tmp_path / name)] == [1]


def test_tensorboard_shows_a_generation_verbatim(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = trackers.get("tensorboard")(TrackedRun(tmp_path))
    tracker.log_generations(1, [Generation("# no title", "<b>\n\n- two", "2", 1.0, "finished")])
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("val/generation_0/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert "input:\n\n    # no title\n" in text
    assert "    <b>\n    \n    - two" in text


@pytest.mark.parametrize("live", [False, True])
def test_the_console_shows_a_warning_as_it_is(live):
    console = Console(file=io.StringIO(), width=60, force_terminal=live, _environ={"TERM": "xterm"})
    tracker = ConsoleTracker(9, "run", console=console, live=live)
    tracker.log(1, {"reward/mean": 0.5})
    tracker.log_warning(1, "not called: [red]search\x1b[2J")
    tracker.close()
    text = console.file.getvalue()
    assert "warning at step 1: not called: [red]search⟨U+001B⟩[2J" in text
    if live:  # the panel is drawn again below the warning
        assert "step 1/9" in text.rpartition("warning at step 1")[2]


def test_dropped_groups_are_a_file_of_their_step_and_later_ones_are_deleted_on_resume(tmp_path):
    stores = {split: TrajectoryStore(tmp_path / split, split=split) for split in ("train", "excluded")}
    records = Records([], Health(), 0, text_of, stores["train"], excluded_store=stores["excluded"])
    for step, dropped in ((1, ["a", "b"]), (2, []), (3, ["c"])):
        reasons = {f"{uid}/{number}": Excluded.STALE for uid in dropped for number in (0, 1)}
        records.store_rollouts(step, [group("t")], (), reasons, [group(uid) for uid in dropped])
    assert (stores["train"].steps, stores["excluded"].steps) == ([1, 2, 3], [1, 3])
    found = [(each.split, each.task.uid, each.excluded) for each in stores["excluded"].scan(steps=[1])]
    assert found == [("excluded", uid, "stale") for uid in "aabb"]
    assert {each.excluded for each in stores["train"].scan()} == {None}
    records.start_after(2)
    assert (stores["train"].steps, stores["excluded"].steps) == ([1, 2], [1])
