"""`agentrl replay`: its arguments, flags, output files and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.cli.main import main, parse
from agentrl.cli.replay import nested_overrides, read_words
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.replay.base import Replay, Result, Table
from agentrl.replay.modes import MODES, Entry
from agentrl.store import TrajectoryStore
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task

asked: list[Replay] = []


def noisy(replay: Replay) -> Result:
    """A mode that prints, and reports its arguments."""
    print("noise")
    asked.append(replay)
    replay.scores["noisy"] = {(0, "a", 0): 2.0}
    return Result("noisy", "heard", [Table("t", ["a"], [[1.5]])], {"overrides": str(replay.options.overrides)})


def failing(replay: Replay) -> Result:
    """A mode that fails because of an earlier mode's result."""
    return Result("failing", f"scores of {', '.join(replay.scores)}", failed=True)


@pytest.fixture
def run(tmp_path, monkeypatch):
    asked.clear()
    for mode in (noisy, failing, impossible):
        monkeypatch.setitem(MODES, mode.__name__, Entry("for a test", f"{__name__}:{mode.__name__}"))
    rollouts = [Rollout([], Stop.FINISHED, {"score": 1.0})]
    no_samples: list[Sample] = []
    TrajectoryStore(tmp_path / "run/trajectories/train").write(0, [Group(Task([], uid="a"), rollouts)], no_samples)
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def importable(monkeypatch, request):
    monkeypatch.syspath_prepend(request.path.parent)


def test_replay_without_arguments_lists_modes(capsys):
    assert main(["replay"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in MODES)


def test_every_mode_is_there():
    for entry in MODES.values():
        assert callable(entry.load())


def test_words_and_flags_may_be_mixed():
    options = parse(
        ["replay", "a.b=1", "RUN", "--k", "1", "rescore", "compare", "--html", "f", "B@last", "x=2", "from-turn", "3"]
    )
    words = read_words(options.overrides)
    assert (words.run, words.modes) == ("RUN", ["rescore", "compare", "from-turn"])
    assert words.arguments == {"compare": "B@last", "from-turn": "3"}
    assert words.overrides == ["a.b=1", "x=2"]


def test_a_run_whose_folder_has_an_equals_sign_is_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1").mkdir()
    words = read_words(["lr=1", "audit", "algorithm.name=grpo"])
    assert (words.run, words.overrides) == ("lr=1", ["algorithm.name=grpo"])


PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)


@given(st.lists(PRINTABLE | st.sampled_from([*MODES, "a=", "trainer.seed=", "~x=1", "rollout.n={"]), max_size=6))
def test_random_words_are_read_or_refused(words):
    with suppress(AgentRLError):
        nested_overrides(read_words(words).overrides)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["RUN", "audti"], "unknown replay mode 'audti': did you mean 'audit'?"),
        (["RUN"], "missing mode for 'RUN': agentrl replay RUN MODE..., where MODE is audit, rescore,"),
        (["algorithm.name=grpo"], "missing RUN, the folder of a run: agentrl replay RUN MODE..."),
        (["RUN", "compare"], "'compare' needs OTHER after it ("),
        (["RUN", "from-turn", "x"], "'from-turn' needs the number of a model turn, counted from 0, not 'x'"),
        (["RUN", "audit", "audit"], "'audit' is given twice"),
        (["RUN", "audit", "algorithm.nam=x"], "unknown key 'algorithm.nam': did you mean 'algorithm.name'?"),
        (["RUN", "audit", "rollout.n=1,2"], "'rollout.n=1,2' has several values"),
        (["RUN", "audit", "rollout.n=[1"], "cannot read 'rollout.n=[1'"),
        (["RUN", "audit", "--k", "0,1"], "--k: expected positive integers, for example 1,2,4, got '0,1'"),
        (["RUN", "audit", "--level", "95"], "--level: expected a number between 0 and 1, for example 0.95, got '95'"),
        (["no/such/run", "noisy"], "there is no 'no/such/run'"),
        (["x" * 5000, "noisy"], "there is no 'xxxxx"),
        (["RUN", "audit", f"trainer.sed={'a' * 5000}"], "unknown key 'trainer.sed': did you mean 'trainer.seed'?"),
    ],
)
def test_mistakes_are_one_line_errors(run, capsys, words, line):
    assert main(["replay", *words]) == 2
    assert capsys.readouterr().err.startswith(f"agentrl: error: {line}")
    assert not asked


def test_unknown_flag_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit):
        main(["replay", "RUN", "audit", "--rewards", "x"])
    assert "unrecognized arguments: --rewards (did you mean '--reward'?)" in capsys.readouterr().err


def test_overrides_are_read_as_hydra_reads_them():
    read = nested_overrides(
        ["rollout.n=3", "+reward.custom_reward_function.reward_kwargs.by='a b'", "reward.timeout_s=0.5"]
    )
    kwargs = {"reward_kwargs": {"by": "a b"}}
    assert read == {"rollout": {"n": 3}, "reward": {"custom_reward_function": kwargs, "timeout_s": 0.5}}
    with pytest.raises(ConfigError, match="one value"):
        nested_overrides(["~rollout.n"])


def test_modes_run_in_order_and_a_failed_one_is_status_1(run, capsys):
    assert main(["replay", str(run), "noisy", "failing"]) == 1
    out = capsys.readouterr().out
    assert out.index("noisy: heard") < out.index("failing: scores of noisy")
    assert out.startswith(f"{run}: train, step 0; made by agentrl unknown")
    assert "\x1b" not in out


def impossible(replay: Replay) -> Result:
    """A mode whose inputs are missing."""
    raise DataError("there is nothing\nof the kind")


def test_results_before_a_failing_mode_are_written(run, tmp_path, capsys):
    words = ["replay", str(run), "noisy", "impossible", "failing"]
    assert main([*words, "--json", str(tmp_path / "f.json"), "--html", str(tmp_path / "f.html")]) == 2
    found = json.loads((tmp_path / "f.json").read_text())["results"]
    told = [(result["mode"], result["summary"], result["failed"]) for result in found]
    assert told == [("noisy", "heard", False), ("impossible", "there is nothing\nof the kind", True)]
    assert "there is nothing" in (tmp_path / "f.html").read_text()
    output = capsys.readouterr()
    assert output.err == "agentrl: error: there is nothing\nagentrl: error: of the kind\n"
    assert "noisy: heard" in output.out


@pytest.mark.slow
def test_wrong_path_or_step_is_reported_before_torch_is_imported(run):
    program = """
import sys
from agentrl.cli.main import main
from agentrl.replay.modes import find_mode
for where in sys.argv[1:]:
    assert main(["replay", where, "logprobs"]) == 2
find_mode("audit").load()
sys.exit(any(name in sys.modules for name in ("torch", "transformers")))
"""
    done = subprocess.run([sys.executable, "-c", program, "nowhere", f"{run}@99"], capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 2)


def test_options_reach_the_modes(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    flags = [
        "--reward",
        "a.py:f",
        "--reward",
        "gsm8k",
        "--k",
        "4,1",
        "--level",
        "0.9",
        "--out",
        "o",
        "--unrecorded",
        "stub",
    ]
    assert main(["replay", str(run), "noisy", *flags, "rollout.n=2", "--tokenizer", "t"]) == 0
    options = asked[0].options
    assert (list(options.rewards), list(options.ks), options.level) == (["a.py:f", "gsm8k"], [1, 4], 0.9)
    assert (str(options.out), options.unrecorded, options.tokenizer) == ("o", "stub", "t")
    assert options.overrides == {"rollout": {"n": 2}}


def test_json_on_standard_output_is_the_only_output(run, capsys):
    assert main(["replay", str(run), "noisy", "failing", "--json", "-"]) == 1
    captured = capsys.readouterr()
    assert [found["mode"] for found in json.loads(captured.out)["results"]] == ["noisy", "failing"]
    assert captured.err == "noise\n"


def test_exported_files_do_not_change_the_shown_output(run, capsys, tmp_path):
    files = ["--json", str(tmp_path / "new/found.json"), "--html", str(tmp_path / "found.html")]
    assert main(["replay", str(run), "noisy", *files]) == 0
    assert "noisy: heard" in capsys.readouterr().out
    assert json.loads((tmp_path / "new/found.json").read_text())["results"][0]["tables"][0]["rows"] == [[1.5]]
    assert "heard" in (tmp_path / "found.html").read_text()
    assert main(["replay", str(run), "noisy", "--html", str(run)]) == 2
    assert f"cannot write '{run}'" in capsys.readouterr().err


def test_uid_needs_the_mode_it_is_for(run):
    assert main(["replay", str(run), "noisy", "--uid", "a"]) == 2
    assert asked == []
