from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, RewardError
from agentrl.registry import load_file
from agentrl.rewards.base import NoVerdictError
from agentrl.rewards.builtin.registry import gsm8k
from agentrl.rewards.functions.processes import ProcessReward, ScorePool
from agentrl.tools.base import InfraError

SOURCE = """
import os, signal, sys, time
from agentrl.tools.base import InfraError

def score(solution_str, ground_truth, extra_info, bonus=0):
    print("noise on stdout")
    if solution_str == "hang":
        time.sleep(60)
    if solution_str == "hang without a word":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        while True:
            pass
    if solution_str == "exit":
        os._exit(3)
    if solution_str == "leave":
        sys.exit(2)
    if solution_str == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "raise":
        raise KeyError("k")
    if solution_str == "down":
        raise InfraError("the service is down")
    if solution_str == "none":
        return None
    return {"score": bonus, "pid": os.getpid(), "why": "text"}

async def late(solution_str):
    return 0.25
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "scoring.py"
    path.write_text(SOURCE)
    return load_file(path)


def ask(reward, text, **extra):
    return reward("math", text, "7", {"index": 3, **extra})


def run(coroutine_function, user_file, *, workers=1, timeout_s=20.0, function="score", **kwargs):
    async def main():
        reward = ProcessReward(getattr(user_file, function), kwargs, timeout_s, function, ScorePool(workers))
        try:
            return await coroutine_function(reward)
        finally:
            reward.close()

    return asyncio.run(main())


@pytest.mark.slow
def test_calls_run_in_a_process_that_stays(user_file, caplog):
    async def calls(reward):
        return [await ask(reward, "fine", tags=["a", 1, None]) for _ in range(3)]

    answers = run(calls, user_file, bonus=2)
    assert {answer["score"] for answer in answers} == {2.0}
    assert len({answer["pid"] for answer in answers}) == 1
    assert answers[0]["pid"] != os.getpid()
    assert len(caplog.records) == 1  # the non-number entry is reported once
    with pytest.raises(ProcessLookupError):
        os.kill(int(answers[0]["pid"]), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("death", "told"), [("exit", "status 3"), ("killed", "status -9")])
def test_a_process_that_dies_costs_one_score(user_file, death, told):
    async def calls(reward):
        before = await ask(reward, "fine")
        with pytest.raises(InfraError, match=rf"row 3\): its process ended with {told}"):
            await ask(reward, death)
        return before, await ask(reward, "fine")

    before, after = run(calls, user_file)
    assert before["pid"] != after["pid"]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["hang", "hang without a word"])
def test_hanging_scorer_is_killed_and_loses_one_score(user_file, kind):
    async def calls(reward):
        first = await ask(reward, "fine")
        reward._timeout_s = 0.2
        with pytest.raises(InfraError, match=r"took longer than 0\.2 seconds .*scoring\.py"):
            await ask(reward, kind)
        await asyncio.to_thread(gone, int(first["pid"]))
        reward._timeout_s = 20.0
        second = await ask(reward, "fine")
        return first["pid"], second["pid"]

    hung, other = run(calls, user_file)
    assert hung != other


def gone(pid):
    """Wait until a process has ended and its parent has reaped it."""
    late = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < late
        time.sleep(0.01)


@pytest.mark.slow
def test_other_calls_continue_while_one_hangs(user_file):
    async def calls(reward):
        await asyncio.gather(ask(reward, "fine"), ask(reward, "fine"))  # both processes have started
        reward._timeout_s = 1.0
        hung = asyncio.create_task(ask(reward, "hang"))
        fine = [await ask(reward, "fine") for _ in range(5)]
        assert not hung.done()
        with pytest.raises(InfraError):
            await hung
        return fine

    assert len(run(calls, user_file, workers=2)) == 5


@pytest.mark.slow
def test_external_kill_during_scoring(user_file):
    async def calls(reward):
        pid = (await ask(reward, "fine"))["pid"]
        call = asyncio.create_task(ask(reward, "hang"))
        await asyncio.sleep(0.05)
        os.kill(int(pid), 9)
        with pytest.raises(InfraError, match="ended with status -9"):
            await call
        return await ask(reward, "fine")

    assert run(calls, user_file)["score"] == 0.0


@pytest.mark.slow
def test_failures_are_attributed_to_reward_or_infrastructure(user_file):
    async def calls(reward):
        for text, kind, told in (
            ("raise", RewardError, r"row 3\).* raised KeyError: 'k' \(.*scoring\.py:\d+\)"),
            ("leave", RewardError, "raised SystemExit"),
            ("none", RewardError, "expected a finite number"),
            ("down", InfraError, "the service is down"),
        ):
            with pytest.raises(kind, match=told):
                await ask(reward, text)
        with pytest.raises(RewardError, match="not JSON serializable"):
            await ask(reward, "fine", image=object())
        return await ask(reward, "fine")

    assert run(calls, user_file)["score"] == 0.0


@pytest.mark.slow
def test_an_async_function_is_awaited(user_file):
    assert run(lambda reward: ask(reward, "text"), user_file, function="late") == {"score": 0.25}


@pytest.mark.slow
def test_number_of_processes_is_at_most_num_workers(user_file):
    async def calls(reward):
        return await asyncio.gather(*(ask(reward, "fine") for _ in range(12)))

    assert len({answer["pid"] for answer in run(calls, user_file, workers=2)}) <= 2


def test_process_rewards_must_be_importable(user_file):
    def inside(solution_str):
        return 1.0

    class Scorer:
        def __call__(self, solution_str):
            return 1.0

    for function in (inside, lambda solution_str: 1.0, Scorer()):
        with pytest.raises(ConfigError, match="must be a function at the top of a file or module"):
            ProcessReward(function, {}, 1.0, "mine", ScorePool(1))
    assert ProcessReward(gsm8k, {}, 1.0, "gsm8k", ScorePool(1))._target == "agentrl.rewards.builtin.registry:gsm8k"


def test_process_that_fails_to_start_is_an_infra_error(user_file, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InfraError, match="its process ended with status 1"):
        run(lambda reward: ask(reward, "fine"), user_file)


@pytest.mark.slow
def test_failures_keep_their_kind_and_are_reported_once(user_file):
    with pytest.raises(NoVerdictError):
        run(lambda reward: ask(reward, "none"), user_file)
    with pytest.raises(RewardError, match=r"\) raised KeyError: 'k' \([^()]*\)$"):
        run(lambda reward: ask(reward, "raise"), user_file)
