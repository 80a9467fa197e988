from __future__ import annotations

import json
import math

import pytest
from planned_run import ANSWER, PROMPT, RESULT, TOOL_S, rollout, saved_run, segment

from agentrl.errors import AgentRLError
from agentrl.plan.lengths import Turn
from agentrl.plan.measured import MAX_WAIT_S, lengths_of, read_run
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.trajectory import Author, Trajectory

SECOND = PROMPT + ANSWER + RESULT


def test_turns_of_a_saved_rollout_by_hand():
    found = lengths_of(rollout(8))
    assert found.turns == (Turn(PROMPT, PROMPT, ANSWER, TOOL_S), Turn(SECOND, RESULT, ANSWER + 8, 0.0))
    assert (found.trajectories, found.prompt) == ((SECOND + ANSWER + 8,), PROMPT)


def test_a_trajectory_that_begins_like_the_one_before_reuses_its_tokens():
    first = Trajectory([segment(Author.PROMPT, 40), segment(Author.MODEL, 10, 100)])
    second = Trajectory([segment(Author.PROMPT, 30), segment(Author.USER, 25, 500), segment(Author.MODEL, 5, 600)])
    found = lengths_of(Rollout([first, second], Stop.FINISHED))
    assert found.turns == (Turn(40, 40, 10), Turn(55, 25, 5))
    assert found.trajectories == (50, 60)


@pytest.mark.parametrize(
    ("duration_s", "waited_s"), [(math.inf, 0.0), (math.nan, 0.0), (-3.0, 0.0), (1e12, MAX_WAIT_S)]
)
def test_impossible_durations_are_bounded(duration_s, waited_s):
    assert lengths_of(rollout(0, duration_s)).turns[0].wait_s == waited_s


def test_a_run_has_its_groups_and_its_times(tmp_path):
    measured = read_run(str(saved_run(tmp_path, learn=2.0, step=9.0)))
    assert len(measured.lengths.groups) == 6
    assert [each.num_tokens for each in measured.lengths.group(0, 3)] == [190, 198, 190]
    assert measured.lengths.group(7, 2) == measured.lengths.group(1, 2)
    assert (measured.mean("timing_s/learn"), measured.median("timing_s/step")) == (2.0, 9.0)
    assert measured.mean("timing_s/none") is None


def test_the_first_step_and_damaged_rows_are_left_out(tmp_path):
    folder = saved_run(tmp_path, learn=2.0)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "timing_s/learn": "long"}\n{"step": 5, "timing_s/learn": -1}\nnot json\n[]\n')
        file.write(json.dumps({"step": 6, "timing_s/learn": 1e300}) + "\n")
    assert [step["step"] for step in read_run(str(folder)).steps] == [2, 3]


def test_a_folder_without_rollouts_is_refused(tmp_path):
    with pytest.raises(AgentRLError):
        read_run(str(tmp_path / "none"))
    (tmp_path / "trajectories").mkdir()
    with pytest.raises(AgentRLError):
        read_run(str(tmp_path))


def test_a_run_without_metrics_has_lengths_only(tmp_path):
    (saved_run(tmp_path) / "metrics.jsonl").unlink()
    assert read_run(str(tmp_path)).steps == []


def test_tokens_that_rollouts_of_a_task_share_are_found(tmp_path):
    """The two rollouts of a group are equal for 190 tokens; the second has 8 more."""
    first, second = read_run(str(saved_run(tmp_path))).lengths.group(0, 2)
    assert (first.shared, second.shared) == ((0,), (190,))
