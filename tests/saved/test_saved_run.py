"""Saved runs in Python: their contents as tables, and the replay modes as functions that print nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from older_files import as_version_3
from replayed_runs import make_run

import agentrl
from agentrl.errors import AgentRLError


@pytest.fixture(scope="module")
def folder(task_folder, tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("saved"), task_folder)


def always(data_source, solution_str, ground_truth, extra_info):
    return 1.0


def test_a_run_has_its_configuration_metrics_rollouts_and_checkpoints(folder):
    run = agentrl.load(folder)
    assert run.config["model"]["path"]
    steps = [row["step"] for row in run.metrics]
    assert list(run.metrics.to_pandas().index) == steps
    assert len(repr(run)) < 120
    rollouts = list(run.rollouts("train"))
    assert {stored.step for stored in rollouts} == {step for step in steps if step}
    assert [one.number for one in run.rollouts("train", step=1)] == [one.number for one in rollouts if one.step == 1]
    assert all((path / "config.json").is_file() for path in run.checkpoints.values())


@pytest.mark.slow
def test_rollouts_are_tables(folder, tmp_path):
    run = agentrl.load(folder)
    rollouts = list(run.rollouts("train"))
    frame = run.to_pandas("train")
    assert list(frame["reward"]) == [stored.rollout.reward for stored in rollouts]
    assert frame["prompt"][0] == rollouts[0].task.messages[-1]["content"]
    dataset = run.to_dataset("train")
    assert dataset["uid"][:] == [stored.task.uid for stored in rollouts]
    shutil.copytree(folder, tmp_path / "older")
    for path in (tmp_path / "older/trajectories").rglob("*.parquet"):
        as_version_3(path)
    older = agentrl.load(tmp_path / "older").to_dataset("train")
    assert older["rewards"][:] == dataset["rewards"][:]
    assert older.features == dataset.features


@pytest.mark.slow
def test_modes_of_replay_are_functions_that_print_nothing(folder, capsys):
    run = agentrl.load(folder)
    capsys.readouterr()
    scored = agentrl.rescore(run, always, split="train")
    assert not scored.failed
    assert "test_saved_run:always" in scored.summary
    assert "bitwise equal" in agentrl.readvantage(folder, split="train").summary
    credited = agentrl.readvantage(run, reward=always, split="train")
    assert "groups lose their signal" in credited.summary or "bitwise equal" in credited.summary
    assert "compare" in repr(agentrl.compare(run, folder, split="train"))
    assert agentrl.audit_run(run, split="train", allow_unchecked=True).failed is False
    assert capsys.readouterr().out == ""


def test_an_estimator_may_be_an_object(folder):
    def doubled(batch):
        return batch.token_rewards * 2, batch.token_rewards

    result = agentrl.readvantage(folder, split="train", settings={"algorithm.adv_estimator": doubled})
    assert result.mode == "readvantage"


def test_folder_without_a_run_is_an_error(tmp_path):
    for path, complaint in [(tmp_path / "none", "there is no"), (tmp_path, "contains no trajectories")]:
        with pytest.raises(AgentRLError, match=complaint):
            agentrl.load(path)
    (tmp_path / "config.yaml").write_text("- !!python/object/apply:os.system [touch gone]")
    run = agentrl.load(tmp_path)
    with pytest.raises(AgentRLError, match=r"config\.yaml' cannot be read"):
        run.config  # noqa: B018
    assert not Path("gone").exists()
    with pytest.raises(AgentRLError, match="expected a run"):
        agentrl.rescore(3, always)


def test_the_package_shows_its_api_and_each_name_is_there():
    assert set(agentrl.__all__) <= set(dir(agentrl))
    assert all(callable(getattr(agentrl, name)) for name in agentrl.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        agentrl.trian  # noqa: B018
