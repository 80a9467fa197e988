"""Rollouts with an environment: prompt, end of the episode, rewards, seeds, and errors of a row."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial

import pytest
from loop_builders import CHAT, TASK, ListEngine, call, config, texts

from agentrl.config.reward import RewardConfig
from agentrl.engines.base import SamplingParams
from agentrl.errors import ConfigError, DataError, RewardError
from agentrl.registry import give
from agentrl.rewards.functions.processes import ProcessReward, ScorePool
from agentrl.rewards.loading import given_reward, load_reward
from agentrl.rollouts.collector import collect
from agentrl.rollouts.runner import RolloutRunner
from agentrl.tools.base import InfraError
from agentrl.tools.environments.spec import load_environment
from agentrl.tools.toolbox import load_toolbox
from agentrl.types.rollout import Outcome, Stop
from agentrl.types.task import observation_in, with_observation

ROW = replace(TASK, extra_info={"target": 3})


class Walk:
    """Walks to a target and ends there."""

    def reset(self, target, **columns):
        self.place, self.target, self.done = 0, target, False
        return f" Go to {target}."

    def step(self, size: int) -> str:
        """Step.

        Args:
            size: how far.
        """
        self.place += size
        self.done = self.place == self.target
        return f"at {self.place}"

    def get_reward(self):
        return float(self.place == self.target)


def roll(kind, *replies, task=ROW, reward=None, loop="tool_agent", seed=0, **options):
    limits = {key: options.pop(key) for key in ("max_response_length",) if key in options}
    run_config = config(loop, environment=give(kind), **limits, **options)
    engine = ListEngine(*replies)

    async def main():
        toolbox = load_toolbox(run_config.rollout.multi_turn)
        reward_of_run = reward or load_reward(RewardConfig(name="tool_rewards"))
        runner = RolloutRunner(engine, CHAT, toolbox, reward_of_run, run_config)
        try:
            return await runner.run(task, SamplingParams(), seed=seed)
        finally:
            await toolbox.close()

    return asyncio.run(main())


def test_the_observation_belongs_to_the_prompt_and_done_ends_the_rollout():
    rollout = roll(Walk, call("step", size=1), call("step", size=2), "never sampled")
    assert (rollout.stop, rollout.reward, rollout.tool_rewards) == (Stop.ENVIRONMENT_DONE, 1.0, {"Walk": 1.0})
    (author, prompt), *_, (last, answer) = texts(rollout)
    assert (author, last) == ("prompt", "tool")
    assert "What is 2 + 3? Go to 3.<|im_end|>" in prompt
    assert "at 3" in answer
    messages = rollout.trajectories[0].messages
    assert observation_in(ROW, messages) == " Go to 3."
    assert ROW.messages[-1]["content"] == "What is 2 + 3?"  # the task itself is unchanged


def test_the_rollout_goes_on_until_the_model_ends_if_the_environment_does_not():
    rollout = roll(Walk, call("step", size=1), "I stop")
    assert (rollout.stop, rollout.reward) == (Stop.FINISHED, 0.0)


def test_react_loops_have_environments_too():
    rollout = roll(Walk, 'Action: step\nAction Input: {"size": 3}\n', loop="react_agent")
    assert (rollout.stop, rollout.reward) == (Stop.ENVIRONMENT_DONE, 1.0)
    assert observation_in(ROW, rollout.trajectories[0].messages) == " Go to 3."


def test_a_loop_without_tools_starts_no_environment():
    rollout = roll(Walk, "5", loop="single_turn_agent", task=TASK)
    assert (rollout.stop, rollout.tool_rewards) == (Stop.FINISHED, {})
    assert "Go to" not in texts(rollout)[0][1]


@pytest.mark.parametrize(
    "content",
    ["Go.", [{"type": "text", "text": "Go."}], [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]],
)
def test_an_observation_is_found_again_in_the_messages(content):
    task = replace(TASK, messages=[{"role": "system", "content": "s"}, {"role": "user", "content": content}])
    observed = with_observation(task, " North?")
    later = [{"role": "assistant", "content": "no"}]
    assert observation_in(task, [*observed.messages, *later]) == " North?"
    assert observation_in(task, [{"role": "system", "content": "x"}, *observed.messages, *later]) == " North?"
    assert observation_in(task, [*task.messages, *later]) == ""


def test_an_observation_that_does_not_fit_the_prompt_ends_the_run():
    class Talks(Walk):
        def reset(self):
            return " word" * 2000

    with pytest.raises(DataError, match=r"row 0: with the text that reset .* returned, the prompt has \d+ tokens: set"):
        roll(Talks, "5")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(KeyError("map"), "row 7: reset of environment 'Bad' raised KeyError: 'map'"), (InfraError("down"), None)],
)
def test_a_reset_that_raises_ends_the_run_and_an_outage_drops_the_rollout(error, raised):
    class Bad(Walk):
        def reset(self):
            raise error

    row = replace(TASK, index=7)
    if raised:
        with pytest.raises(DataError, match=raised):
            roll(Bad, "5", task=row)
        return
    rollout = roll(Bad, "5", task=row)
    assert (rollout.stop, rollout.infra_failed, rollout.valid, rollout.rewards) == (Stop.ERROR, True, False, {})
    assert rollout.error.startswith("InfraError: row 7: reset of environment 'Bad': down")


def test_a_reward_that_raises_ends_the_run_and_a_hung_object_has_no_reward():
    class Broken(Walk):
        def get_reward(self):
            raise ZeroDivisionError("x")

    with pytest.raises(RewardError, match="row 0: get_reward of environment 'Broken' raised ZeroDivisionError: x"):
        roll(Broken, "5")

    class Hangs(Walk):
        async def step(self, size: int) -> str:
            """Step."""
            await asyncio.sleep(60)
            return ""

    rollout = roll(Hangs, call("step", size=1), "5", tool_timeout_s=0.02)
    assert [each.outcome for each in rollout.tool_calls] == [Outcome.TIMEOUT]
    assert (rollout.infra_failed, rollout.rewards) == (True, {})


def test_reward_functions_of_trl_get_the_environments():
    seen = []

    def at_target(environments, completions, target, rollout_reward_scores, **columns):
        seen.extend(environments)
        return [float(each.place == wanted) for each, wanted in zip(environments, target, strict=True)]

    reward = given_reward([at_target], RewardConfig(), has_environment=True)
    rollout = roll(Walk, call("step", size=3), reward=reward)
    reward.close()
    assert (rollout.rewards["score"], rollout.rewards["at_target"]) == (1.0, 1.0)
    assert isinstance(seen[0], Walk)
    with pytest.raises(ConfigError, match="needs 'environments', which only a run with an environment has: add a def"):
        given_reward([at_target], RewardConfig())


def count_keys(extra_info):
    return float("environment" in extra_info)


@pytest.mark.slow
def test_other_reward_functions_get_the_object_unless_they_run_in_processes():
    reward = given_reward(count_keys, RewardConfig())
    assert roll(Walk, "5", reward=reward).reward == 1.0
    reward.close()
    isolated = ProcessReward(count_keys, {}, 30.0, "count_keys", ScorePool(1))
    assert roll(Walk, "5", reward=isolated).reward == 0.0
    isolated.close()


class Dice:
    """Its start is the group's, its rolls are the rollout's."""

    deterministic = True

    def reset(self, seed, group_seed):
        self.random = random.Random(seed)
        return f" Start {random.Random(group_seed).randint(1, 10**9)}."

    def roll(self) -> int:
        """Roll."""
        return self.random.randint(1, 10**9)

    def reward(self):
        return self.random.random()


def test_random_environments_repeat_and_differ_within_a_group():
    def run():
        run_config = config(environment=give(Dice), max_assistant_turns=3)

        async def main():
            toolbox = load_toolbox(run_config.rollout.multi_turn)
            runner = RolloutRunner(Replies(), CHAT, toolbox, load_reward(RewardConfig(name="tool_rewards")), run_config)
            tasks = [replace(TASK, uid=uid) for uid in ("a", "b")]
            groups = partial(collect, runner, tasks, n=3, sampling=SamplingParams(), seed=5, slots=asyncio.Semaphore(6))
            try:
                return await groups()
            finally:
                await toolbox.close()

        groups = asyncio.run(main())
        return [[(texts(rollout), rollout.reward) for rollout in group.rollouts] for group in groups]

    first = run()
    assert first == run()
    prompts = [{shown[0][1] for shown, _ in group} for group in first]
    assert [len(each) for each in prompts] == [1, 1]  # one start per group
    assert prompts[0] != prompts[1]
    assert len({str(shown[1:]) for group in first for shown, _ in group}) == 6  # every rollout has rolls of its own
    assert load_environment(give(Dice)).deterministic


class Replies(ListEngine):
    """Answers every request with a call."""

    def __init__(self):
        super().__init__(*[call("roll")] * 100)
