"""Records of rollouts that are excluded from training."""

from __future__ import annotations

import pytest

from agentrl.trainer.sources.exclusions import Exclusions
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory

ROLLOUT = Rollout(
    [Trajectory([Segment(Author.PROMPT, [1, 2])])],
    Stop.FINISHED,
    {"score": 0.5},
    tool_calls=[ToolCall("f", "{}", "1", Outcome.OK)],
    seed=7,
)
GROUP = Group(Task([{"role": "user", "content": "?"}], uid="u"), [ROLLOUT, ROLLOUT])
REASONS = {"u/0": Excluded.STALE, "u/1": Excluded.STALE}


@pytest.mark.parametrize(("save", "num_saved"), [("summary", 1), ("tokens", 1), ("none", 0)])
def test_the_key_decides_what_is_saved(save, num_saved):
    exclusions = Exclusions(save)
    exclusions.drop(GROUP, [Excluded.STALE] * 2)
    groups, reasons = exclusions.take()
    assert (len(groups), reasons) == (num_saved, REASONS)  # all exclusions are counted
    assert exclusions.take() == ([], {})
    if save == "tokens":
        assert groups == [GROUP]
    elif groups:
        (saved, _) = groups[0].rollouts
        assert (saved.trajectories, saved.tool_calls) == ([], [])
        assert (groups[0].task, saved.rewards, saved.stop, saved.seed) == (GROUP.task, {"score": 0.5}, ROLLOUT.stop, 7)


def test_rollouts_removed_by_a_correction_are_recorded():
    exclusions, sample = Exclusions(), Sample([1, 2], [0, 1], [1, 1], [0, 1.0], uid="u", rollout_id="u/1")
    correct = exclusions.observed(lambda samples: ([], {"correction/ess": 0.5}), overlong=False)
    assert correct([sample]) == ([], {"correction/ess": 0.5})
    assert exclusions.take() == ([], {"u/1": Excluded.NO_ADVANTAGE})
