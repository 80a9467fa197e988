"""The record of a run's machine, and whether the run is reproducible."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config import validate_config
from agentrl.run_folder.environment import why_not
from agentrl.run_folder.reproducibility import MAX_EVENTS, ReproducibilityReport
from agentrl.run_folder.saved_environment import reproducibility_text
from agentrl.tools import tool
from agentrl.tools.calculator import calculator
from agentrl.tools.toolbox import Toolbox
from agentrl.trainer.builders.records import open_reproducibility
from agentrl.types.rollout import Group, Outcome, Rollout, Stop, ToolCall
from agentrl.types.task import Task


def config(folder, **rollout):
    folder.mkdir(exist_ok=True)
    threads = rollout.pop("num_threads", 1)
    return validate_config(
        {
            "model": {"path": "m"},
            "rollout": {"deterministic": True, "device": "cpu", **rollout},
            "actor": {"device": "cpu"},
            "trainer": {"default_local_dir": folder, "num_threads": threads},
        }
    )


def kept(folder):
    return json.loads((folder / "environment.json").read_text())


def group(uid="a", *rollouts):
    return Group(Task([], uid=uid), list(rollouts) or [Rollout([], Stop.FINISHED)])


def test_new_run_saves_environment_and_reproducibility(tmp_path, capsys):
    ReproducibilityReport(config(tmp_path), live=True).begin(-1)
    found = kept(tmp_path)
    assert {"agentrl", "python", "torch", "transformers", "tokenizers"} == found["versions"].keys()
    assert found["versions"]["torch"] == torch.__version__
    assert (found["devices"], found["threads"]) == ({"rollout": "cpu", "actor": "cpu"}, torch.get_num_threads())
    assert found["platform"]
    assert found["cpu"]
    assert found["reproducible"]["promised"]
    assert capsys.readouterr().out == "reproducible bit for bit\n"
    assert reproducibility_text(found) == "yes"


def test_tools_not_declared_deterministic_make_a_run_not_reproducible(tmp_path):
    @tool(deterministic=True)
    def steady() -> str:
        """Answer."""
        return ""

    @tool
    def random() -> str:
        """Draw."""
        return ""

    engine, runner = SimpleNamespace(metrics=dict), SimpleNamespace(nondeterministic_users=[])
    for name, tools in (("steady", [steady, calculator]), ("random", [steady, random])):
        rolling: Any = SimpleNamespace(engine=engine, toolbox=Toolbox(tools), runner=runner)
        open_reproducibility(config(tmp_path / name), rolling).begin(-1)
    assert kept(tmp_path / "steady")["reproducible"]["promised"]
    assert kept(tmp_path / "random")["reproducible"]["why_not"] == ["tools not marked deterministic=True: random"]


@pytest.mark.parametrize(
    ("settings", "live", "reasons"),
    [
        ({"deterministic": False}, True, ["rollout.deterministic=false"]),
        ({"deterministic": False}, False, []),  # nothing is sampled
        ({"num_threads": None}, True, ["trainer.num_threads=null"]),
        ({"engine": "scripted", "script_path": "a.py:reply", "deterministic": False, "device": "auto"}, True, []),
    ],
)
def test_settings_that_make_a_run_not_reproducible(tmp_path, settings, live, reasons):
    assert list(why_not(config(tmp_path, **settings), live)) == reasons


def test_a_gpu_run_is_not_reproducible(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.run_folder.environment.find_device", lambda name, key: torch.device("cuda"))
    reasons = list(why_not(config(tmp_path), live=True))
    assert reasons == ["rollout.device is cuda", "actor.device is cuda"]


def test_scripted_engine_is_assumed_deterministic(tmp_path):
    scripted = {"engine": "scripted", "script_path": "a.py:reply", "deterministic": False, "device": "auto"}
    ReproducibilityReport(config(tmp_path, **scripted), live=True).begin(-1)
    assert kept(tmp_path)["reproducible"]["provided"][-1] == "the script is deterministic: a.py:reply"


def test_users_that_may_answer_differently_are_named(tmp_path):
    ReproducibilityReport(config(tmp_path), live=True, users=["customer"]).begin(-1)
    assert kept(tmp_path)["reproducible"]["why_not"] == ["simulated users not marked deterministic: customer"]


def test_timeouts_end_reproducibility_and_are_reported_once(tmp_path, capsys):
    reproducibility = ReproducibilityReport(config(tmp_path), live=True)
    reproducibility.begin(-1)
    reproducibility.watch(1, "train", [group()])
    assert kept(tmp_path)["reproducible"]["promised"]
    slow = Rollout([], Stop.FINISHED, tool_calls=[ToolCall("search", "{}", "", Outcome.TIMEOUT)])
    reproducibility.watch(2, "train", [group("b", Rollout([], Stop.FINISHED), slow)])
    reproducibility.watch(2, "val", [group("c", Rollout([], Stop.DEADLINE))])
    reproducibility.watch(
        3, "train", [group("d", Rollout([], Stop.ERROR, error="InfraError: down", infra_failed=True))]
    )
    found = kept(tmp_path)["reproducible"]
    assert [(e["step"], e["split"], e["uid"], e["rollout"]) for e in found["ended_by"]] == [
        (2, "train", "b", 1),
        (2, "val", "c", 0),
        (3, "train", "d", 0),
    ]
    assert not found["promised"]
    assert found["why_not"] == ["tool 'search' ran out of time (step 2, b), and 2 more"]
    told = [line for line in capsys.readouterr().out.splitlines() if "no longer" in line]
    assert told == ["no longer reproducible: tool 'search' ran out of time (step 2, b)"]
    assert reproducibility_text(kept(tmp_path)) == f"no: {found['why_not'][0]}"


def test_reasons_beyond_the_limit_are_only_counted(tmp_path):
    reproducibility = ReproducibilityReport(config(tmp_path), live=True)
    reproducibility.begin(-1)
    reproducibility.watch(1, "train", [group("a", *[Rollout([], Stop.DEADLINE)] * (MAX_EVENTS + 5))])
    found = kept(tmp_path)["reproducible"]
    assert (len(found["ended_by"]), found["num_ended_by"]) == (MAX_EVENTS, MAX_EVENTS + 5)


def test_resuming_on_another_machine_is_reported_and_saved(tmp_path, capsys):
    ReproducibilityReport(config(tmp_path), live=True).begin(-1)
    before = kept(tmp_path)
    before["versions"]["torch"], before["threads"], before["cpu"] = "1.0", 7, "an abacus"
    (tmp_path / "environment.json").write_text(json.dumps(before))
    capsys.readouterr()
    reproducibility = ReproducibilityReport(config(tmp_path), live=True)
    reproducibility.begin(4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"changed: torch was 1.0 and is now {torch.__version__}"
    assert lines[1].startswith("changed: cpu was an abacus and is now ")
    assert lines[2] == f"changed: threads was 7 and is now {torch.get_num_threads()}"
    assert lines[3].startswith("not reproducible: after step 4 torch was 1.0")
    assert kept(tmp_path) == before  # nothing is recorded yet: the run may be finished
    reproducibility.watch(5, "train", [group()])
    assert [each["what"] for each in kept(tmp_path)["reproducible"]["changed"]] == ["torch", "cpu", "threads"]
    for step in (3, 4):  # a resume before the change repeats steps, but the first steps ran on another machine
        ReproducibilityReport(config(tmp_path), live=True).begin(step)
        assert f"not reproducible: after step {step} torch was 1.0" in capsys.readouterr().out
    ReproducibilityReport(config(tmp_path), live=True).begin(5)
    assert "not reproducible: after step 4 torch was 1.0" in capsys.readouterr().out


def test_a_resumed_run_without_records_is_not_reproducible(tmp_path, capsys):
    reproducibility = ReproducibilityReport(config(tmp_path), live=True)
    reproducibility.begin(4)
    assert "environment.json was missing" in capsys.readouterr().out
    reproducibility.watch(5, "train", [group()])
    assert not kept(tmp_path)["reproducible"]["promised"]


def test_run_started_from_another_run_is_compared_with_it(tmp_path, capsys):
    before = ReproducibilityReport(config(tmp_path / "one"), live=True)
    before.begin(-1)
    before.watch(2, "train", [group("b", Rollout([], Stop.DEADLINE))])
    ReproducibilityReport(config(tmp_path / "one"), live=True).begin(2)
    capsys.readouterr()
    started = {
        step: ReproducibilityReport(config(tmp_path / f"new-{step}"), live=True, before=tmp_path / "one")
        for step in (1, 2)
    }
    started[1].begin(1)
    assert capsys.readouterr().out == "reproducible bit for bit\n"
    started[1].watch(2, "train", [group()])
    assert kept(tmp_path / "new-1")["reproducible"]["promised"]
    started[2].begin(2)
    assert capsys.readouterr().out.endswith("a rollout reached rollout.multi_turn.rollout_timeout_s (step 2, b)\n")
    edited = kept(tmp_path / "one") | {"cpu": "an abacus"}
    (tmp_path / "one/environment.json").write_text(json.dumps(edited))
    ReproducibilityReport(config(tmp_path / "new-3"), live=True, before=tmp_path / "one").begin(1)
    assert "changed: cpu was an abacus and is now " in capsys.readouterr().out
    assert kept(tmp_path / "one") == edited


def test_steps_under_nondeterministic_settings_are_remembered(tmp_path, capsys):
    reproducibility = ReproducibilityReport(config(tmp_path, deterministic=False), live=True)
    reproducibility.begin(-1)
    reproducibility.watch(1, "train", [group()])
    capsys.readouterr()
    ReproducibilityReport(config(tmp_path), live=True).begin(1)
    assert capsys.readouterr().out == "not reproducible: rollout.deterministic=false\n"


def test_an_evicted_conversation_ends_reproducibility(tmp_path, capsys):
    evicted = [0.0, 0.0, 2.0, 2.0]
    for deterministic in (True, False):
        folder, counter = tmp_path / str(deterministic), iter(evicted)
        engine = SimpleNamespace(metrics=lambda it=counter: {"evicted_sessions": next(it)})
        runner = SimpleNamespace(nondeterministic_users=[])
        rolling: Any = SimpleNamespace(engine=engine, toolbox=Toolbox(), runner=runner)  # only these fields are read
        reproducibility = open_reproducibility(config(folder, deterministic=deterministic), rolling)
        reproducibility.begin(-1)
        for step in range(1, len(evicted)):
            reproducibility.watch(step, "train", [group()])
    told = [line for line in capsys.readouterr().out.splitlines() if "no longer" in line]
    what = "the engine evicted a conversation (rollout.max_num_seqs)"
    assert told == [f"no longer reproducible: {what} (step 2), and 1 more"]
    assert kept(tmp_path / "True")["reproducible"]["ended_by"] == [{"step": 2, "split": "train", "what": what}] * 2
    assert kept(tmp_path / "False")["reproducible"]["ended_by"] == []  # never reproducible, so eviction is allowed
