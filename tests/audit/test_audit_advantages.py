"""The audit recomputes advantages and scores of most estimators, and names the estimators it cannot check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from credited_steps import CREDITS, configured, saved
from older_files import as_version_2

from agentrl.audit.auditor import Auditor
from agentrl.audit.base import Finding
from agentrl.audit.estimators import Trained, estimator_of

NOT_DERIVED = ("grpo_passk", "gpg", "gdpo", "grpo_process", "grpo_turn", "mt_grpo", "gigpo", "sft")
BY_TURNS = ("gae", "reinforce_plus_plus")
DERIVED = [name for name in CREDITS if name not in NOT_DERIVED]
KL = {"use_kl_in_reward": True, "kl_penalty": "low_var_kl", "kl_ctrl": {"kl_coef": 0.5}}

Row = dict[str, Any]


def audited(folder: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> dict[str, Finding]:
    """The findings of the first step, after a change of its rows."""
    path = folder / "trajectories/train/step-000001.parquet"
    table = pq.read_table(path, partitioning=None)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return Auditor(folder=folder).audit([path]).findings


def written(folder: Path, name: str, **more: object) -> Path:
    return saved(folder, configured(name, **more), turns=name not in BY_TURNS)


def trajectories_of(rows: list[Row]) -> list[Row]:
    return [each for row in rows for each in row["trajectories"] if each["advantages"] is not None]


def double_one(rows: list[Row]) -> None:
    """Double one advantage that is not 0."""
    values = next(each["advantages"] for each in trajectories_of(rows) if any(each["advantages"]))
    place = next(index for index, value in enumerate(values) if value)
    values[place] *= 2


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", DERIVED)
def test_advantages_are_recomputed_and_a_changed_one_is_found(name: str, tmp_path: Path) -> None:
    run = written(tmp_path, name)
    found = audited(run)["advantages"]
    assert (found.status, found.problems, found.unchecked) == ("passed", [], {})
    found = audited(run, double_one)["advantages"]
    assert {problem.column.split("[")[0] for problem in found.problems} == {"trajectories"}


@pytest.mark.parametrize("name", ["grpo", "gae", "rft", "pairwise"])
def test_weights_of_trajectories_are_factors_of_advantages(name: str, tmp_path: Path) -> None:
    def heavier(rows: list[Row]) -> None:
        for each in trajectories_of(rows):
            each["weight"] *= 2

    run = saved(tmp_path, configured(name), turns=False, weights=(0.5, 0.0, 1.5))
    found = audited(run)["advantages"]
    assert (found.status, found.problems) == ("passed", [])
    compares = name == "pairwise"  # rollouts, not trajectories
    assert bool(audited(run, heavier)["advantages"].num_problems) != compares


@pytest.mark.parametrize("name", ["grpo", "rloo", "remax", "gae", "reinforce_plus_plus"])
def test_audit_recomputes_kl_in_the_reward(name: str, tmp_path: Path) -> None:
    run = written(tmp_path, name, **KL)
    found = audited(run)
    assert (found["advantages"].num_problems, found["scores"].num_problems) == (0, 0)
    assert not found["advantages"].unchecked
    assert audited(run, double_one)["advantages"].num_problems


def test_options_of_an_estimator_count(tmp_path: Path) -> None:
    options = {"gamma": 0.9, "lam": 0.8, "adv_options": {"whiten": False}}
    assert audited(written(tmp_path / "gae", "gae", **options))["advantages"].problems == []
    centred = written(tmp_path / "grpo", "grpo", norm_adv_by_std_in_grpo=False)
    assert audited(centred)["advantages"].problems == []
    random = written(tmp_path / "pairs", "pairwise", pairing="best_random")
    assert audited(random)["advantages"].problems == []
    chosen = written(tmp_path / "chosen", "gspo", adv_estimator="rloo_vectorized")
    assert audited(chosen)["advantages"].problems == []


@pytest.mark.parametrize("name", NOT_DERIVED)
def test_estimators_that_are_not_checked_are_named(name: str, tmp_path: Path) -> None:
    (why,) = audited(written(tmp_path, name))["advantages"].unchecked
    assert why == f"estimator '{name}' of '{name}'"


def test_rewards_of_turns_are_not_derived(tmp_path: Path) -> None:
    (why,) = audited(saved(tmp_path, configured("gae")))["advantages"].unchecked
    assert why == "estimator 'gae' with turn rewards"


def test_preference_needs_a_better_and_a_worse_rollout(tmp_path: Path) -> None:
    def turn_around(rows: list[Row]) -> None:
        for each in trajectories_of(rows):
            each["advantages"] = [-value for value in each["advantages"]]

    assert audited(written(tmp_path, "pairwise"), turn_around)["advantages"].num_problems


@pytest.mark.parametrize(
    ("change", "column"),
    [
        (lambda each: each["values"].__setitem__(-1, float("nan")), "values"),
        (lambda each: each["values"].__setitem__(0, 0.5), "values"),
        (lambda each: each["values"].pop(), "values"),
        (lambda each: each.__setitem__("values", None), "values"),
        (lambda each: each.__setitem__("old_logprobs", [0.0]), "old_logprobs"),
        (lambda each: each["ref_logprobs"].__setitem__(-1, 0.5), "ref_logprobs"),
        (lambda each: each.__setitem__("kl_coef", 0.25), "kl_coef"),
    ],
)
def test_impossible_score_is_found(change: Callable[[Row], object], column: str, tmp_path: Path) -> None:
    run = written(tmp_path, "gae", **KL)
    found = audited(run, lambda rows: change(trajectories_of(rows)[0]))["scores"]
    assert {problem.column.split(".")[1].split("[")[0] for problem in found.problems} == {column}


def test_audit_requires_one_kl_coefficient_per_step(tmp_path: Path) -> None:
    run = written(tmp_path, "grpo", **{**KL, "kl_ctrl": {"type": "adaptive", "kl_coef": 0.01}})
    assert audited(run)["scores"].problems == []
    found = audited(run, lambda rows: trajectories_of(rows)[1].__setitem__("kl_coef", 0.1))["scores"]
    assert [problem.expected for problem in found.problems] == ["0.5"]


def test_a_file_of_version_2_passes_with_a_note_about_missing_scores(tmp_path: Path) -> None:
    run = written(tmp_path, "grpo")
    as_version_2(run / "trajectories/train/step-000001.parquet")
    found = audited(run)
    assert [found[name].status for name in ("seals", "advantages", "scores")] == ["passed", "passed", "not checkable"]
    assert list(found["scores"].unchecked) == ["files of schema 2 have none"]


def step_of(rewards: list[float], **more: object) -> Trained:
    """One group of rollouts with one token each."""
    count = len(rewards)
    given = {
        "valid": np.ones(count, np.bool_),
        "values": None,
        "baselines": np.full(count, np.nan),
        "found": np.zeros(count),
    }
    token = {
        "row": np.arange(count),
        "rewards": np.array(rewards),
        "groups": [range(count)],
        "penalty": np.zeros(count),
    }
    return Trained(**token, **{**given, **more})


@pytest.mark.parametrize(
    ("name", "trained", "expected"),
    [
        ("grpo", step_of([1, 0, 0, 1]), [0.8660, -0.8660, -0.8660, 0.8660]),
        ("grpo", step_of([1, 0, 0, 1, 5], valid=np.arange(5) < 4), [0.8660, -0.8660, -0.8660, 0.8660, 0]),
        ("grpo", step_of([0.1 + 0.2, 0.3]), [0, 0]),
        ("dr_grpo", step_of([1, 0, 0, 1]), [0.5, -0.5, -0.5, 0.5]),
        ("rloo", step_of([1, 0, 0.5]), [0.75, -0.75, 0]),
        ("opo", step_of([1, 0]), [0.5, -0.5]),
        ("reinforce_plus_plus", step_of([1, 0]), [0.7071, -0.7071]),
        ("reinforce_plus_plus_baseline", step_of([1, 0]), [0.7071, -0.7071]),
        ("remax", step_of([1, 0], baselines=np.array([0.25, np.nan])), [0.75, 0]),
        ("gae", step_of([1, 0], values=np.array([0.5, 0.5])), [0.7071, -0.7071]),
        ("threshold", step_of([1, 0.5]), [1, 0]),
        ("scores", step_of([1, 0]), [0.5, -0.5]),
        ("best_worst", step_of([1, 0, 1, 0], found=np.array([0, 0, 1, -1])), [0, 0, 1, -1]),
        ("best_worst", step_of([1, 0, 1, 0], found=np.array([1, 0, -1, 0])), [1, -1, 0, 0]),
    ],
)
def test_estimator_equals_its_written_formula(name: str, trained: Trained, expected: list[float]) -> None:
    estimate = estimator_of(name, {})
    assert estimate is not None
    assert estimate(trained) == pytest.approx(expected, abs=1e-4)


def test_audit_without_saved_configuration_recomputes_no_advantages(tmp_path: Path) -> None:
    run = written(tmp_path, "gae")
    path = run / "trajectories/train/step-000001.parquet"
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({"agentrl.schema_version": "8"}), path)
    found = audited(run)
    assert "no saved configuration" in found["advantages"].unchecked
    assert found["scores"].problems == []
