"""A saved configuration never causes code to run or endpoints to be contacted: both come from the command line."""

from __future__ import annotations

import pytest
from judge_server import JudgeServer, Reply, serving
from replayed_runs import replayed, rewritten, with_config

from agentrl.cli.main import main

FILE = "def one():\n    raise SystemExit('code of the run was run')\n"


@pytest.fixture
def judge():
    with serving(JudgeServer(otherwise=lambda body: Reply('{"reason": "", "score": 5}'))) as server:
        yield server


def run_of(saved_run, folder, **reward):
    return rewritten(saved_run, folder, provenance=with_config(reward=reward))


def refused(capsys, *words):
    assert main(["replay", *map(str, words)]) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_components_of_a_run_are_not_run(saved_run, tmp_path, capsys):
    (tmp_path / "own.py").write_text(FILE)
    run = run_of(saved_run, tmp_path / "run", components={"own": {"reward": f"{tmp_path}/own.py:one"}})
    assert "the reward of the run has several components, which may name code: give reward.components=..." in refused(
        capsys, run, "rescore"
    )
    (result,) = replayed(capsys, run, "rescore", "reward.components={own: {reward: exact_match}}")["results"]
    assert result["values"]["rewards"]["components"]["num_scored"] == 32
    (result,) = replayed(capsys, run, "rescore", "--reward", "exact_match")["results"]
    assert result["values"]["rewards"]["exact_match"]["num_scored"] == 32


@pytest.mark.parametrize("words", [[], ["--reward", "judge"], ["reward.components={a: {reward: judge}}"]])
def test_saved_judge_is_not_called(saved_run, tmp_path, capsys, judge, words):
    run = run_of(saved_run, tmp_path, name="judge", judge={"url": judge.url, "model": "theirs"})
    said = refused(capsys, run, "rescore", *words, *(["reward.name=auto"] if "components" in str(words) else []))
    assert "replay uses a judge only from the command line: give reward.judge.url=..." in said
    assert judge.bodies == []


@pytest.mark.slow
def test_judge_of_the_command_line_is_called(saved_run, capsys, judge):
    asked = (f"reward.judge.url={judge.url}", "reward.judge.model=ours")
    (result,) = replayed(capsys, saved_run, "rescore", "--reward", "judge", *asked)["results"]
    assert result["values"]["rewards"]["judge"]["num_scored"] == 32
    assert {row["new"]["judge"]["score"] for row in result["values"]["rollouts"]} == {0.5}
    assert {body["model"] for body in judge.bodies} == {"ours"}


@pytest.mark.parametrize("saved", [{}, {"sandbox": "local"}, {"sandbox_fusion": {"url": "http://theirs"}}])
def test_code_in_a_run_runs_only_in_a_sandbox_of_the_command_line(saved_run, tmp_path, capsys, saved):
    run = run_of(saved_run, tmp_path, name="code", **saved)
    assert "runs programs that the model wrote: set reward.sandbox=local" in refused(capsys, run, "rescore")
    assert "set reward.sandbox=local" in refused(capsys, saved_run, "rescore", "--reward", "code")
    said = refused(capsys, run, "rescore", "reward.sandbox=locl")
    assert "unknown sandbox 'locl': did you mean 'local'" in said
