"""TRL's reward functions: their arguments, and their allowed return values."""

from __future__ import annotations

import asyncio
import re
from functools import partial, wraps

import numpy as np
import pytest
import torch

from agentrl.config.data import DataConfig
from agentrl.config.reward import RewardConfig
from agentrl.data.tasks import load_tasks
from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.functions.trl import RewardFuncs
from agentrl.tools.base import InfraError

CHAT = [{"role": "user", "content": "?"}]


def judge(*functions, **row) -> dict[str, float]:
    """Scores of the functions for two turns; the prompt is a dialogue unless the row has another."""
    extra = {"turn_texts": ["let me see", "it is 20"], "prompt": CHAT, "completion_ids": [4, 5, 6], **row}
    return asyncio.run(
        RewardFuncs(functions, RewardConfig(timeout_s=5.0))("doubles", "let me see\nit is 20", "20", extra)
    )


def test_trl_functions_get_lists_of_one_and_are_summed():
    def right(prompts, completions, completion_ids, ground_truth, **columns):
        assert (prompts, completion_ids) == ([CHAT], [[4, 5, 6]])
        assert (columns["level"], columns["tags"], columns["data_source"]) == ([3], [["a", "b"]], ["doubles"])
        assert "trainer_state" not in columns
        pairs = zip(completions, ground_truth, strict=True)
        return [float(truth in completion[-1]["content"]) for completion, truth in pairs]

    async def short(completions, trainer_state=None, log_metric=None):
        return [0.5 if completions == [[says("let me see"), says("it is 20")]] else 0.0]

    assert judge(right, short, level=3, tags=["a", "b"]) == {"score": 1.5, "right": 1.0, "short": 0.5}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_text_prompts_come_as_text(tmp_path):
    def words(prompts, completions, **columns):  # as in the first example of TRL's docs
        assert prompts == ["What is 10+10?"]
        return [float(len(re.findall(r"\w+", completion))) for completion in completions]

    (tmp_path / "rows.jsonl").write_text('{"prompt": "What is 10+10?"}\n{"prompt": [{"role": "user", "content": "?"}]}')
    text, chat = load_tasks([str(tmp_path / "rows.jsonl")], DataConfig(system_prompt="Be brief."))
    assert [message["role"] for message in text.messages] == ["system", "user"]
    assert judge(words, prompt=list(text.messages), **text.extra_info) == {"score": 6.0, "words": 6.0}
    assert chat.extra_info == {}


@pytest.mark.parametrize("returned", [[0.5], (0.5,), np.array([0.5]), torch.tensor([0.5]), [torch.tensor(0.5)]])
@pytest.mark.filterwarnings("error")
def test_objects_with_one_number_are_scores(returned):
    def any_kind(completions):
        return returned

    assert judge(any_kind) == {"score": 0.5, "any_kind": 0.5}


@pytest.mark.parametrize(
    "returned", [[1.0, 2.0], [], 1.0, "1", {"score": 1.0}, torch.tensor(1.0), np.array(1.0), ["1"], [float("nan")]]
)
def test_other_objects_are_refused_by_name(returned):
    def wrong(completions):
        return returned

    with pytest.raises(RewardError, match=r"reward 'wrong'.*row 7.*(list of one|finite) number"):
        judge(wrong, index=7)


def test_none_rewards_are_ignored_and_only_none_means_no_score():
    def not_applicable(completions):
        return [None]

    def half(completions):
        return [0.5]

    assert judge(not_applicable, half) == {"score": 0.5, "half": 0.5}
    with pytest.raises(InfraError, match="row 7: every reward function returned None"):
        judge(not_applicable, index=7)


async def late(completions, **columns):
    await asyncio.sleep(0)
    return [1.0]


@wraps(late)
def wrapped(*args, **kwargs):
    return late(*args, **kwargs)


class Late:
    async def __call__(self, completions, **columns):
        return await late(completions)


@pytest.mark.parametrize("function", [late, wrapped, Late(), partial(Late(), weight=2)])
def test_async_functions_of_every_kind_are_awaited(function):
    assert judge(function)["score"] == 1.0


def test_arguments_only_trls_trainer_has_are_refused_at_the_start():
    def curious(completions, trainer_state):
        return [1.0]

    with pytest.raises(
        ConfigError, match=r"reward 'curious' needs 'trainer_state', .* trainer_state=None .*\.py:\d+\)"
    ):
        RewardFuncs([curious], RewardConfig())
