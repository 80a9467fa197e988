"""`agentrl replay RUN why`: rollouts that were not trained on, with their reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.replay.base import Options, Replay
from agentrl.replay.saved_run import open_saved
from agentrl.replay.why_mode import reason_of, why
from agentrl.store import StoredRollout
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Rollout, Stop
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
def test_reasons(rollout, advantages, keys, reason):
    stored = StoredRollout(1, "train", 0, Task([]), rollout, advantages)
    assert reason_of(stored, AlgorithmConfig(**keys)) == reason


def test_a_validation_is_not_credited(saved_run):
    run = open_saved(str(saved_run), "val")
    result = why(Replay(run, Options()))
    assert {each["reason"] for each in result.values["excluded"]} == {"not_credited"}
    assert len(result.values["excluded"]) == result.values["num_rollouts"] > 0


def test_a_training_run(saved_run):
    result = why(Replay(open_saved(str(saved_run), "train"), Options()))
    assert result.values == {"num_rollouts": 32, "excluded": []}
