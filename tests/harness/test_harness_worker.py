"""The function of a harness in a worker process of another interpreter."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from harness_rolls import TASK, Rolls, check_tokens
from loop_builders import CHAT

from agentrl.errors import ConfigError, UnknownNameError
from agentrl.harness.settings import read_harness
from agentrl.harness.worker import FunctionWorker
from agentrl.types.rollout import Stop

AGENT = Path(__file__).with_name("shell_agent.py")


@pytest.fixture
def acts(tmp_path):
    """Runs rollouts in which a function in a worker does what the model says."""
    rolls = Rolls(tmp_path)

    def roll(*replies, function="acts", **options):
        return rolls(*replies, function=f"{AGENT}:{function}", **{"python": sys.executable, **options})

    roll.rolls = rolls
    return roll


def facts(acts) -> dict[str, object]:
    """What the reward got about the last rollout."""
    return acts.rolls.seen[-1]


def test_a_score_is_the_reward(acts):
    (rollout,) = acts("score")
    assert (rollout.stop, rollout.rewards["score"]) == (Stop.FINISHED, 0.5)
    check_tokens(rollout, acts.rolls.engine)


@pytest.mark.parametrize("action", ["nan", "text", "huge", "true"])
def test_anything_else_but_a_score_is_an_error_of_the_function(acts, action):
    (rollout,) = acts(action)
    assert (rollout.stop, rollout.valid) == (Stop.ERROR, False)
    assert "must return None or a finite number" in rollout.error


def test_the_function_knows_the_row_and_its_own_variables_only(acts, monkeypatch):
    monkeypatch.setenv("SECRET", "of the run")
    (rollout,) = acts("fine", function="tells", env={"OWN": "mine"})
    told = json.loads(re.search(r"\{.*\}", CHAT.text(rollout.trajectories[0].segments[0].token_ids))[0])
    assert told["task"] == [TASK.instruction, TASK.messages, {}, TASK.index, TASK.uid, TASK.data_source]
    assert (told["truth"], told["own"], told["secret"], told["agentrl"], told["input"]) == (
        "5",
        "mine",
        None,
        False,
        "",
    )


@pytest.mark.parametrize(("action", "shown"), [("raise", "KeyError: 'with KEY'"), ("exit", "SystemExit: no more")])
def test_an_exception_counts_as_exit_code_1(acts, action, shown):
    (rollout,) = acts(action)
    assert rollout.stop is not Stop.ERROR
    assert facts(acts)["harness_exit_code"] == 1
    assert shown in facts(acts)["harness_output"]


def test_what_the_function_prints_is_no_answer(acts):
    (rollout,) = acts("print")
    assert rollout.rewards["score"] == 0.25


def test_a_worker_that_dies_fails_the_rollout_and_the_next_one_has_a_new_worker(acts):
    dead, *others = acts("die", *["score"] * 4, count=5)
    assert [each.infra_failed for each in (dead, *others)].count(True) >= 1
    assert "out of memory with KEY" in next(each.error for each in (dead, *others) if each.infra_failed)
    (rollout,) = acts("score")
    assert rollout.rewards["score"] == 0.5


@pytest.mark.slow
def test_a_function_that_blocks_is_left_at_the_deadline(acts):
    started = time.monotonic()
    (rollout,) = acts("block", deadline_s=2.0)
    assert rollout.stop is Stop.DEADLINE
    assert time.monotonic() - started < 60


def test_the_worker_ends_with_the_run(acts, tmp_path):
    text = (
        f"import os\nasync def run(task, endpoint):\n    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    )
    (tmp_path / "agent.py").write_text(text)
    acts.rolls("x", function="agent.py:run", python=sys.executable)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIG_DFL)


@pytest.mark.parametrize(
    ("function", "options"),
    [("absent", {}), ("plain", {}), ("run", {"python": "bin/absent"}), ("run", {"python": "/no/python"})],
)
def test_what_cannot_be_called_ends_the_run(acts, function, options):
    with pytest.raises((ConfigError, UnknownNameError)):
        acts("x", function=function, **options)


def test_a_file_that_does_not_exist_is_named(tmp_path):
    (tmp_path / "harness.yaml").write_text(json.dumps({"function": "absent.py:run", "python": sys.executable}))
    with pytest.raises(ConfigError, match=r"no file 'absent\.py'"):
        FunctionWorker(read_harness(str(tmp_path / "harness.yaml")))
