"""Every algorithm recomputes a stored step's advantages bit for bit: failed members, turns, several trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from credited_steps import COEFFICIENTS, CREDITS, POLICIES, a_step, configured, saved, trained_step

from agentrl.algos.build import build_algorithm
from agentrl.config import RunConfig
from agentrl.config.document import redacted
from agentrl.errors import DataError
from agentrl.replay.base import Options, Replay
from agentrl.replay.readvantage.mode import readvantage
from agentrl.replay.readvantage.recredit import Credit, recompute_credit
from agentrl.replay.saved_run import open_saved
from agentrl.store import TrajectoryStore
from agentrl.store.schema import CONFIG


def replay_of(run: Path, **overrides: object) -> Replay:
    return Replay(open_saved(str(run)), Options(overrides={"algorithm": overrides} if overrides else {}))


def credits_of(run: Path, config: RunConfig, **overrides: object) -> list[Credit]:
    found = recompute_credit(replay_of(run, **overrides), build_algorithm(config))
    return [credit for group in found for credit in group]


def assert_identical(run: Path) -> None:
    result = readvantage(replay_of(run))
    assert result.values["identical"], result.summary
    assert result.values["saved"]["mean |advantage| of a token"] > 0


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CREDITS)
def test_every_algorithm_credits_a_stored_step_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert_identical(saved(tmp_path, configured(name)))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("control", ["fixed", "adaptive"])
@pytest.mark.parametrize("name", POLICIES)
def test_kl_in_the_reward_uses_the_coefficient_of_each_step(name: str, control: str, tmp_path: Path) -> None:
    more = {"use_kl_in_reward": True, "kl_penalty": "low_var_kl", "kl_ctrl": {"type": control, "kl_coef": 0.1}}
    assert_identical(saved(tmp_path, configured(name, **more)))


def test_readvantage_reuses_the_kl_of_the_step_start(tmp_path: Path) -> None:
    decoupled = {"use_kl_in_reward": True, "rollout_correction": {"bypass_mode": False}}
    assert_identical(saved(tmp_path, configured("grpo", **decoupled)))


def test_readvantage_uses_a_given_coefficient(tmp_path: Path) -> None:
    run = saved(tmp_path, configured("rloo", use_kl_in_reward=True))
    asked = {"kl_coef": COEFFICIENTS[1]}
    again = credits_of(run, configured("rloo", use_kl_in_reward=True, kl_ctrl=asked), kl_ctrl=asked)
    same = {(credit.key[0], credit.before.tobytes() == credit.after.tobytes()) for credit in again if any_in(credit)}
    assert same == {(1, True), (2, False)}


def any_in(credit: Credit) -> bool:
    return credit.before is not None and bool(credit.before.any())


@pytest.mark.parametrize(
    ("name", "more", "need", "by"),
    [
        ("gae", {}, "values", "algorithm.adv_estimator"),
        ("grpo", {"use_kl_in_reward": True}, "ref_logprobs", "algorithm.use_kl_in_reward"),
    ],
)
def test_missing_saved_scores_are_an_error(name: str, more: dict, need: str, by: str, tmp_path: Path) -> None:
    run = saved(tmp_path, configured(name, **more), keep_scores=False)
    with pytest.raises(DataError, match=f"{need} of step 1 are not saved, but {by} needs them"):
        readvantage(replay_of(run))


def test_unscored_rollout_is_excluded(tmp_path: Path) -> None:
    config = configured("gae")
    run = saved(tmp_path, config)
    replay = replay_of(run)
    replay.scores["other"] = {}
    for stored in replay.run.rollouts():
        replay.scores["other"][stored.step, stored.task.uid, stored.number] = 1.0
        assert stored.rollout.infra_failed == (stored.advantages[0] is None)
    revived = run.with_name("revived")
    store = TrajectoryStore(revived / "trajectories/train", provenance={CONFIG: json.dumps(redacted(config))})
    groups = a_step(1)
    samples = trained_step(build_algorithm(config), groups, 1)
    for group in groups:  # only their reward had failed, and now they have one
        for one in group.rollouts:
            one.error = "reward: it hung" if one.infra_failed else None
    store.write(1, groups, samples)
    again = Replay(open_saved(str(revived)), Options(), replay.scores)
    credits = [credit for group in recompute_credit(again, build_algorithm(config)) for credit in group]
    assert any(credit.before is None for credit in credits)
    assert all((credit.before is None) == (credit.after is None) for credit in credits)


def test_new_reward_keeps_the_remax_baseline(tmp_path: Path) -> None:
    config = configured("remax")
    run = saved(tmp_path, config)
    replay = replay_of(run)
    replay.scores["other"] = {(s.step, s.task.uid, s.number): 1.0 for s in replay.run.rollouts()}
    after = [credit.after for group in recompute_credit(replay, build_algorithm(config)) for credit in group]
    assert {value for values in after if values is not None for value in values} == {0.75}
