from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from agentrl.config.reward import MANAGERS, RewardConfig
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.base import close_reward
from agentrl.rewards.loading import given_reward, load_reward
from agentrl.tools.base import InfraError

FILE = '''
import os, time
from agentrl.tools.base import InfraError

def one(solution_str, extra_info):
    return say(solution_str)

def several(solution_strs):
    return list(map(say, solution_strs))

def say(text):
    if text == "down":
        raise InfraError("the service is down")
    if text == "hang":
        time.sleep(1.0)
    return {"nan": float("nan"), "inf": float("inf"), "high": 3.0}.get(text, 0.5)

class Doubling:
    """A manager of one's own: a reward made of the configured one."""

    def __init__(self, reward, config):
        self.reward, self.config = reward, config

    async def __call__(self, data_source, solution_str, ground_truth, extra_info):
        rewards = await self.reward(data_source, solution_str, ground_truth, extra_info)
        return {**rewards, "score": 2 * rewards["score"], "timeout": self.config.timeout_s}

class Verls:
    def __init__(self, config, tokenizer, compute_score):
        pass

    async def run_single(self, data):
        return {}

def blocking(reward, config):
    return lambda data_source, solution_str, ground_truth, extra_info: {"score": 1.0}
'''


@pytest.fixture
def path(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


def config(path, manager="naive", **options):
    name = "several" if manager == "batch" else "one"
    custom = {"path": path, "name": name}
    options = {"batch_wait_s": 0.01, **options} if manager == "batch" else options
    return RewardConfig(**{"custom_reward_function": custom, "reward_manager": {"name": manager}, **options})


def score(reward, text, **extra):
    async def main():
        try:
            return await reward("math", text, "7", {"index": 3, "response_lengths": [10], **extra})
        finally:
            close_reward(reward)

    return asyncio.run(main())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("manager", MANAGERS)
def test_every_manager_scores_and_attributes_failures(path, manager):
    assert score(load_reward(config(path, manager)), "fine") == {"score": 0.5}
    with pytest.raises(InfraError, match=r"row 3\).*the service is down"):
        score(load_reward(config(path, manager)), "down")
    with pytest.raises(InfraError, match=r"row 3\) took longer than 0\.3 seconds"):
        score(load_reward(config(path, manager, timeout_s=0.3)), "hang")
    for text in ("nan", "inf"):
        with pytest.raises(RewardError, match=r"row 3\).*finite number"):
            score(load_reward(config(path, manager)), text)
    with pytest.raises(RewardError, match=r"row 3 of 'math': the score 3 lies outside reward\.range, 0 to 1"):
        score(load_reward(config(path, manager, range=[0, 1])), "high")
    assert score(load_reward(config(path, manager, range=[0, 3])), "high") == {"score": 3.0}


@pytest.mark.parametrize("manager", MANAGERS)
def test_overlong_penalty_applies_with_every_manager(path, manager):
    own = config(path, manager, overlong_buffer={"enable": True, "len": 4, "log": True}, range=[0, 1])
    rewards = score(load_reward(own, max_response_length=12), "fine")
    assert rewards == {"score": 0.5 - 2 / 4, "overlong_reward": -0.5, "overlong": 1.0}


def test_reward_managers_accept_python_functions(path):
    def several(solution_strs):
        return [1.0] * len(solution_strs)

    batch = RewardConfig(reward_manager={"name": "batch"})
    assert score(given_reward(several, batch), "text") == {"score": 1.0}
    with pytest.raises(ConfigError, match="cannot score in other processes"):
        given_reward(lambda solution_str: 1.0, RewardConfig(reward_manager={"name": "prime"}))


def test_functions_written_for_trl_get_lists_under_batch():
    sizes = []

    def right(prompts, completions, ground_truth, **columns):
        sizes.append(len(completions))
        assert columns["level"] in ([1, 2, None], [1, 2, 3])
        return [
            None if truth == "skip" else float(truth in text)
            for truth, text in zip(ground_truth, completions, strict=True)
        ]

    async def length(completions):
        return [float(len(text)) for text in completions]

    async def main():
        reward = given_reward([right, length], RewardConfig(reward_manager={"name": "batch"}, batch_size=3))
        prompt = [{"role": "user", "content": "?"}]
        rows = [{"level": 1}, {"level": 2}, {}]
        calls = [
            reward("math", f"it is {index}", truth, {"index": index, "prompt": prompt, "text_prompt": True, **row})
            for index, (truth, row) in enumerate(zip(["0", "9", "skip"], rows, strict=True))
        ]
        answers = await asyncio.gather(*calls)
        close_reward(reward)
        return answers

    assert asyncio.run(main()) == [
        {"score": 8.0, "right": 1.0, "length": 7.0},
        {"score": 7.0, "right": 0.0, "length": 7.0},
        {"score": 7.0, "length": 7.0},
    ]
    assert sizes == [3]
    with pytest.raises(ConfigError, match="set naive or batch"):
        given_reward([right, length], RewardConfig(reward_manager={"name": "prime"}))


def test_custom_reward_manager(path):
    own = {"source": "importlib", "name": "Doubling", "module": {"path": str(path)}}
    reward = load_reward(config(path, timeout_s=9.0, reward_manager=own))
    assert score(reward, "fine") == {"score": 1.0, "timeout": 9.0}
    for name, told in (
        ("Dubling", "did you mean 'Doubling'"),
        ("Verls", r"'Verls' must accept"),
        ("blocking", "must have an async __call__"),
    ):
        with pytest.raises(ConfigError, match=rf"reward\.reward_manager\.name: .*{told}"):
            load_reward(config(path, reward_manager={**own, "name": name}))
    with pytest.raises(ConfigError, match=r"module\.path: there is no file"):
        load_reward(config(path, reward_manager={**own, "module": {"path": str(path.with_name("none.py"))}}))


@pytest.mark.slow
def test_built_in_rewards_score_in_processes_and_not_in_batches():
    prime = RewardConfig(reward_manager={"name": "prime"}, num_workers=1)
    reward = load_reward(prime)

    async def main():
        answers = [
            await reward("openai/gsm8k", "#### 4", "4", {}),
            await reward("lighteval/MATH", r"\boxed{4}", "4", {}),
        ]
        close_reward(reward)
        return answers

    assert asyncio.run(main()) == [{"score": 1.0}, {"score": 1.0}]
    with pytest.raises(ConfigError, match="'gsm8k' scores one rollout at a time"):
        load_reward(RewardConfig(name="gsm8k", reward_manager={"name": "batch"}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 3}, "batch_size has no effect without reward_manager.name=batch"),
        ({"max_rpm": 3}, "max_rpm has no effect without reward_manager.name=rate_limited"),
        ({"reward_manager": {"name": "niave"}}, "naive, batch, prime, dapo, rate_limited, not 'niave'"),
        ({"reward_manager": {"source": "importlib"}}, "needs module.path"),
        ({"reward_manager": {"module": {"path": "x.py"}}}, "module.path has no effect"),
        ({"range": [1, 0]}, "lowest, highest"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, told):
    with pytest.raises(ValidationError, match=told):
        RewardConfig(**options)
