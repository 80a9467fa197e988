"""`readvantage`: without changes it reproduces the advantages bit for bit; otherwise it follows GRPO's formula."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from replayed_runs import refused, replayed, rewritten, stored

from agentrl.algos.build import build_algorithm
from agentrl.replay.base import Options, Replay, key_of
from agentrl.replay.readvantage.credit_tally import Tally
from agentrl.replay.readvantage.mode import readvantage
from agentrl.replay.readvantage.recredit import Credit, recompute_credit, with_new_score
from agentrl.replay.rescore.mode import rescore
from agentrl.replay.saved_run import open_saved
from agentrl.replay.settings import replay_config
from agentrl.store import StoredRollout, TrajectoryStore
from agentrl.types.rollout import Rollout


def replay_of(run: Path, **options: object) -> Replay:
    return Replay(open_saved(str(run)), Options(**options))


def credits_of(replay: Replay) -> list[Credit]:
    groups = recompute_credit(replay, build_algorithm(replay_config(replay)))
    return [credit for group in groups for credit in group]


def grpo(scores: np.ndarray, by_std: bool = True) -> np.ndarray:
    """(r - mean) / (std + 1e-6), with unbiased std; 0 if all rewards are equal."""
    if np.ptp(scores) == 0:
        return np.zeros_like(scores)
    return (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6 if by_std else 1)


def groups_of(run: Path) -> list[list[StoredRollout]]:
    return [list(members) for _, members in groupby(stored(run), key=lambda row: (row.step, row.task.uid))]


def test_unchanged_settings_reproduce_saved_advantages_exactly(saved_run, capsys):
    (result,) = replayed(capsys, saved_run, "readvantage")["results"]
    assert result["values"]["identical"]
    assert "32 rollouts are bitwise equal to the saved ones" in result["summary"]
    for credit in credits_of(replay_of(saved_run)):
        assert credit.before is not None
        assert credit.before.tobytes() == credit.after.tobytes()
    assert result["values"]["num_tokens"] == sum(
        row.rollout.trajectories[0].num_trained_tokens for row in stored(saved_run)
    )


@pytest.mark.parametrize("by_std", [True, False])
def test_readvantage_with_another_algorithm_equals_its_formula(saved_run, by_std):
    replay = replay_of(saved_run, overrides={"algorithm": {"norm_adv_by_std_in_grpo": by_std}})
    after = {credit.key: credit.after for credit in credits_of(replay)}
    for members in groups_of(saved_run):
        wanted = grpo(np.array([row.rollout.reward for row in members]), by_std)
        for row, value in zip(members, wanted, strict=True):
            assert after[key_of(row)] == pytest.approx(value, abs=1e-5)


def test_readvantage_after_rescore_uses_the_new_scores(saved_run, tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("def length(solution_str):\n    return len(solution_str) % 3\n")
    replay = replay_of(saved_run, rewards=[f"{file}:length"])
    rescore(replay)
    result, after = readvantage(replay), {credit.key: credit.after for credit in credits_of(replay)}
    woke = fell = 0
    for members in groups_of(saved_run):
        scores = np.array([replay.scores[f"{file}:length"][key_of(row)] for row in members])
        for row, value in zip(members, grpo(scores), strict=True):
            assert after[key_of(row)] == pytest.approx(value, abs=1e-5)
        before_silent = np.ptp([row.rollout.reward for row in members]) == 0
        woke += before_silent and np.ptp(scores) > 0
        fell += not before_silent and np.ptp(scores) == 0
    assert (result.values["num_groups_woke"], result.values["num_groups_fell_silent"]) == (woke, fell)
    assert not result.values["identical"]


def test_rollout_with_failed_new_reward_is_excluded(saved_run, tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("def some(solution_str, extra_info):\n    return 1 / (len(solution_str) % 3)\n")
    replay = replay_of(saved_run, rewards=[f"{file}:some"])
    rescore(replay)
    scores = replay.scores[f"{file}:some"]
    credits = credits_of(replay)
    assert 0 < len(scores) < len(credits)
    assert {credit.key for credit in credits if credit.after is not None} == set(scores)


def test_rollout_with_failed_reward_counts_after_rescoring(saved_run, tmp_path):
    numbers = iter(range(1000))

    def fail(rollout: Rollout) -> None:
        if (number := next(numbers)) % 8 < 2:
            rollout.infra_failed, rollout.rewards = True, {}
            rollout.error = "reward: it hung" if number % 8 else "the tool's server is down"

    run = rewritten(saved_run, tmp_path / "run", fail)
    replay = replay_of(run, rewards=["exact_match"], tokenizer=str(saved_run.parent / "model"))
    rescore(replay)
    taking_part = [not with_new_score(replay, row).infra_failed for row in stored(run)]
    assert taking_part == [number % 8 != 0 for number in range(32)]


def credit(number: int, before: list[float] | None, after: list[float] | None) -> Credit:
    values = [None if side is None else np.array(side) for side in (before, after)]
    return Credit((0, "a", number), *values, 0.0, 1.0)


def test_the_tally_counts_what_changes():
    tally = Tally(num_largest=1)
    tally.add([credit(0, [1.0, 1.0], [-1.0, 1.0]), credit(1, [-2.0], [0.5]), credit(2, None, [1.0])])
    tally.add([credit(3, [0.0], [0.0]), credit(4, [0.0], [0.5])])
    tally.add([credit(5, [3.0], None), credit(6, [1.0], [0.0])])
    assert not tally.identical
    assert (tally.num_groups, tally.num_rollouts, tally.num_tokens) == (3, 5, 6)
    assert (tally.num_sign_changed_rollouts, tally.num_sign_changed_tokens) == (4, 4)
    assert (tally.num_gained_signal, tally.num_lost_signal) == (1, 1)
    assert (tally.before.num_rollouts, tally.after.num_rollouts) == (6, 6)
    assert tally.before.mean_size == pytest.approx(8 / 7)
    x, y = [1.0, 1.0, -2.0, 0.0, 0.0, 1.0], [-1.0, 1.0, 0.5, 0.0, 0.5, 0.0]
    assert tally.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert [one.key[2] for one in tally.largest] == [1]


@pytest.mark.slow
def test_rollouts_without_advantages_are_refused(saved_run, capsys, tmp_path):
    assert "step 0 of split 'val' has no saved advantages" in refused(
        capsys, saved_run, "--split", "val", "readvantage"
    )

    def without_tokens(rollout: Rollout) -> None:
        rollout.trajectories = []

    imported = rewritten(saved_run, tmp_path / "imported", without_tokens)
    assert "the rollouts of step 1 have no tokens" in refused(capsys, imported, "readvantage")
    line = refused(capsys, saved_run, "readvantage", "--reward", "exact_match")
    assert line == "--reward needs 'rescore' before 'readvantage': agentrl replay RUN rescore readvantage"


def test_an_unknown_algorithm_is_named(saved_run, capsys):
    line = refused(capsys, saved_run, "readvantage", "algorithm.adv_estimator=grop")
    assert line.endswith("unknown advantage estimator 'grop': did you mean 'grpo'?")
    assert refused(capsys, saved_run, "readvantage", "algorithm.norm_adv=1").startswith(
        "unknown key 'algorithm.norm_adv'"
    )


def test_readvantage_without_saved_configuration_lists_assumptions(saved_run, tmp_path, capsys):
    other = TrajectoryStore(tmp_path / "trajectories/train")
    groups = TrajectoryStore(saved_run / "trajectories/train").groups(1)
    algorithm = build_algorithm(replay_config(replay_of(saved_run)))
    other.write(1, groups, algorithm.credit(groups, algorithm.samples(groups)))
    (result,) = replayed(capsys, tmp_path, "readvantage")["results"]
    assert result["values"]["identical"]
    assert result["summary"].endswith(
        "the run has no saved configuration: keys without an override have agentrl's defaults"
    )
