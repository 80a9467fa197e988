"""`agentrl replay RUN why`: rollouts excluded from training, with their reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.algos.credit import samples_of
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.errors import DataError
from agentrl.replay.base import Options, Replay
from agentrl.replay.saved_run import open_saved
from agentrl.replay.why_mode import reason_of, why
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan

SAMPLED = Trajectory([Segment(Author.PROMPT, [1]), Segment(Author.MODEL, [5], [-1.0], [VersionSpan(0, 1)])])
CUT = Rollout([SAMPLED], Stop.MAX_RESPONSE_TOKENS)


@pytest.mark.parametrize(
    ("rollout", "advantages", "keys", "reason"),
    [
        (CUT, [[0.0, 1.0]], {}, None),
        (CUT, [[0.0, 1.0]], {"overlong_filter": True}, Excluded.OVERLONG),
        (CUT, [[0.0, 0.0]], {}, None),
        (CUT, [[0.0, 0.0]], {"zero_variance_groups": "drop"}, Excluded.NO_ADVANTAGE),
        (CUT, [None], {}, Excluded.NOT_CREDITED),
        (replace(CUT, stop=Stop.ERROR), [None], {"overlong_filter": True}, Excluded.FAILED),
    ],
)
def test_reason_of_each_exclusion_is_found(rollout, advantages, keys, reason):
    stored = StoredRollout(1, "train", 0, Task([]), rollout, advantages)
    assert reason_of(stored, AlgorithmConfig(**keys)) == reason


def test_a_validation_is_not_credited(saved_run):
    run = open_saved(str(saved_run), "val")
    result = why(Replay(run, Options()))
    assert {each["reason"] for each in result.values["excluded"]} == {"not_credited"}
    assert len(result.values["excluded"]) == result.values["num_rollouts"] > 0


def test_training_run_without_exclusions_has_no_reasons(saved_run):
    result = why(Replay(open_saved(str(saved_run), "train"), Options()))
    assert result.values == {"num_rollouts": 32, "excluded": []}


def a_run(folder, excluded):
    """One step that trained on group `a` except for its second rollout; group `b` was dropped."""
    uids = {name: Group(Task([], uid=name), [CUT, CUT]) for name in "ab"}
    samples = [replace(each, advantages=[0.0, 1.0]) for each in samples_of([uids["a"]])]
    reasons = {"a/1": Excluded.OVERLONG, "b/0": excluded, "b/1": excluded}
    TrajectoryStore(folder / "trajectories/train").write(1, [uids["a"]], samples, reasons)
    TrajectoryStore(folder / "trajectories/excluded", split="excluded").write(1, [uids["b"]], excluded=reasons)
    return open_saved(str(folder))


DROPPED = [Excluded.EQUAL_REWARDS, Excluded.TOO_FEW, Excluded.STALE, Excluded.OVER_SAMPLED]


@pytest.mark.parametrize("reason", [*DROPPED, Excluded.REJECTED_BY_CORRECTION])
def test_dropped_groups_are_listed_with_their_reasons(reason, tmp_path):
    result = why(Replay(a_run(tmp_path, reason), Options()))
    found = [(each["uid"], each["rollout"], each["reason"]) for each in result.values["excluded"]]
    assert found == [("a", 1, "overlong"), ("b", 0, reason), ("b", 1, reason)]
    assert result.values["num_rollouts"] == 4


@pytest.mark.parametrize(
    ("reason", "key"),
    [
        (Excluded.EQUAL_REWARDS, "algorithm.filter_groups"),
        (Excluded.STALE, "trainer.max_staleness"),
        (Excluded.OVER_SAMPLED, "trainer.over_sampling"),
        (Excluded.REJECTED_BY_CORRECTION, "algorithm.rollout_correction.rollout_rs"),
    ],
)
def test_why_explains_one_group_with_the_relevant_key(reason, key, tmp_path):
    run = a_run(tmp_path, reason)
    told = why(Replay(run, Options(uid="b"))).summary
    assert told.startswith(f"Step 1 did not train on 2 of 2 rollouts of 'b' ({reason}): ")
    assert key in told
    told = why(Replay(run, Options(uid="a"))).summary
    assert told.startswith("Step 1 trained on 1 of 2 rollouts of 'a'. Step 1 did not train on 1 of 2 ")
    with pytest.raises(DataError, match="save_excluded"):
        why(Replay(run, Options(uid="c")))


def test_other_readers_do_not_see_dropped_groups(tmp_path):
    run = a_run(tmp_path, Excluded.STALE)
    assert (run.split, {each.task.uid for each in run.rollouts()}) == ("train", {"a"})
