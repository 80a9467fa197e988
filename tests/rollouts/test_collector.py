"""Groups of rollouts: order, seeds, concurrency, and how failures end a group."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

import pytest
from loop_builders import TASK, ListEngine, call, config, runner

from agentrl.agent_loops import AgentLoop, agent_loops
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError, RewardError
from agentrl.rollouts.collector import AllFailedError, attempts_at, collect, group_of, roll_out
from agentrl.types.rollout import Rollout, Stop
from agentrl.utils.seeds import derive_seed

TASKS = [replace(TASK, index=index, uid=f"t{index}", extra_info={"index": index}) for index in range(4)]


def gather(rolls, tasks=TASKS, *, n=2, seed=3, max_concurrent=100):
    slots = asyncio.Semaphore(max_concurrent)
    return asyncio.run(collect(rolls, tasks, n=n, sampling=SamplingParams(), seed=seed, slots=slots))


def test_groups_follow_the_task_order_with_one_seed_per_rollout():
    groups = gather(runner(ListEngine("5"), config()))
    assert [group.task for group in groups] == TASKS
    seeds = [[rollout.seed for rollout in group.rollouts] for group in groups]
    assert seeds == [[derive_seed(3, task.uid, number) for number in range(2)] for task in TASKS]
    assert len({seed for group in seeds for seed in group}) == 8


def own(monkeypatch, run):
    monkeypatch.setitem(agent_loops._objects, "own", type("Own", (AgentLoop,), {"run": run}))
    return config("own")


@pytest.mark.parametrize("max_concurrent", [1, 3, 100])
def test_concurrency_limit_is_respected(monkeypatch, max_concurrent):
    under_way, most = 0, 0

    async def run(self, task, generate, tools, interaction, sampling):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        return chat.rollout()

    gather(runner(ListEngine("5"), own(monkeypatch, run)), max_concurrent=max_concurrent)
    assert most == min(8, max_concurrent)


def failing_at(*indices):
    async def run(self, task, generate, tools, interaction, sampling):
        if task.index in indices:
            raise KeyError(task.index)
        chat = self.open(task, generate, tools, interaction, sampling)
        await chat.model_turn()
        return chat.rollout()

    return run


def test_failed_rollout_does_not_affect_others(monkeypatch):
    groups = gather(runner(ListEngine("5"), own(monkeypatch, failing_at(1))))
    assert [group.rollouts[0].stop is Stop.ERROR for group in groups] == [False, True, False, False]


def test_step_in_which_all_rollouts_fail_ends_the_run(monkeypatch):
    with pytest.raises(AllFailedError, match=r"all 8 rollouts failed; the first: KeyError: 0 \(.*test_collector.py"):
        gather(runner(ListEngine("5"), own(monkeypatch, failing_at(0, 1, 2, 3))))


def test_same_failure_is_reported_once(monkeypatch, caplog):
    gather(runner(ListEngine("5"), own(monkeypatch, failing_at(1))), n=5)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_user_error_ends_the_run_and_releases_everything(monkeypatch):
    async def run(self, task, generate, tools, interaction, sampling):
        await generate([1, 2], sampling)
        if task.index == 2:
            raise ConfigError.keyless("x: wrong")
        await asyncio.sleep(60)

    engine = ListEngine("5")
    with pytest.raises(ConfigError, match="x: wrong"):
        gather(runner(engine, own(monkeypatch, run)), n=1)
    assert sorted(engine.released) == sorted({request.session for request in engine.requests})
    assert len(engine.released) == 4


def with_greedy(rolls, tasks=TASKS, n=2):
    """The groups collected when each has a greedy attempt."""
    sampling = SamplingParams(temperature=0.7, top_k=5, min_p=0.1)
    attempts = partial(attempts_at, runner=rolls, n=n, sampling=sampling, seed=3, greedy_baseline=True)
    return asyncio.run(roll_out(attempts, tasks, n=n, slots=asyncio.Semaphore(9)))


def test_greedy_score_is_the_baseline_and_not_trained_on():
    class Engine(ListEngine):
        async def generate(self, request):
            self._reply = lambda request: "13" if request.sampling.temperature == 0 else "5"
            return await super().generate(request)

    engine = Engine("5")
    groups = with_greedy(runner(engine, config()))
    assert [[rollout.seed for rollout in group.rollouts] for group in groups] == [
        [derive_seed(3, task.uid, number) for number in range(2)] for task in TASKS
    ]
    rewards = [each.rewards for group in groups for each in group.rollouts]
    assert [(each["score"], each["baseline"]) for each in rewards] == [(1.0, 0.0)] * 8
    greedy = [request.sampling for request in engine.requests if request.sampling.temperature == 0]
    assert len(greedy) == len(TASKS)
    assert all((each.top_p, each.top_k, each.min_p) == (1.0, -1, 0.0) for each in greedy)


def scored(stop=Stop.FINISHED, **rewards):
    return Rollout([], stop, rewards)


@pytest.mark.parametrize("greedy", [scored(Stop.ERROR), scored()])
def test_greedy_rollout_without_score_gives_no_baseline(greedy):
    group = group_of(TASK, [scored(score=1.0), greedy], n=1)
    assert [each.rewards for each in group.rollouts] == [{"score": 1.0}]


def test_a_rollout_that_failed_has_no_baseline():
    group = group_of(TASK, [scored(Stop.ERROR), scored(score=0.0), scored(score=0.5)], n=2)
    assert [each.rewards for each in group.rollouts] == [{}, {"score": 0.0, "baseline": 0.5}]


def test_a_reward_function_s_own_baseline_is_named():
    with pytest.raises(RewardError, match="the reward function returns 'baseline'"):
        group_of(TASK, [scored(score=0.0, baseline=1.0), scored(score=0.5)], n=1)


def test_no_greedy_rollout_unless_requested():
    assert group_of(TASK, [scored(score=0.0, baseline=1.0)], n=1).rollouts[0].rewards == {"score": 0.0, "baseline": 1.0}


def test_no_tasks_give_no_groups():
    assert gather(runner(ListEngine("5"), config()), []) == []


def test_tokens_do_not_depend_on_other_requests():
    """As with a sampler, a reply is a function of the context and the seed."""

    class Sampler(ListEngine):
        async def generate(self, request):
            await asyncio.sleep(request.sampling.seed % 3 / 1000)
            self._reply = lambda request: call("add", a=request.sampling.seed % 100, b=1)
            return await super().generate(request)

    def tokens(max_concurrent):
        groups = gather(runner(Sampler("5"), config(max_assistant_turns=3)), max_concurrent=max_concurrent)
        return [list(rollout.trajectories[0].token_ids) for group in groups for rollout in group.rollouts]

    assert tokens(1) == tokens(5)
