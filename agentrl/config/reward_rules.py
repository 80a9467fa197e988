"""Combinations of `reward.*` that some chosen part would not honour."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.idle import every, unused
from agentrl.config.reward import RewardConfig
from agentrl.errors import suggestion

JUDGE = "judge"
"""What `reward.name`, or a component's `reward`, says for the model that judges."""
REWARD_MODEL = "reward_model"
"""The same for the model that scores."""


def ignored_by_reward(reward: RewardConfig) -> Iterator[str]:
    """A line for each option that another takes the place of."""
    custom = reward.custom_reward_function
    if reward.components:
        need = "'reward.components' left out: they take its place"
        yield from unused("reward", reward, ("name",), need)
        yield from unused("reward.custom_reward_function", custom, every(custom), need)
    elif custom.path is None:
        yield from unused("reward.custom_reward_function", custom, ("name",), "a 'path' beside it")
    else:
        need = "'reward.custom_reward_function.path=null': your own function takes its place"
        yield from unused("reward", reward, ("name",), need)
    yield from _wrong_online(reward)


def idle_in_reward(reward: RewardConfig) -> Iterator[str]:
    """A line for each option of a model that is not asked; replay may ask it yet, by `--reward`."""
    if JUDGE not in rewards_asked(reward):
        yield from unused(
            "reward.judge", reward.judge, every(reward.judge), "'reward.name=judge' or a component 'judge'"
        )
    if REWARD_MODEL not in rewards_asked(reward):
        need = "'reward.name=reward_model' or a component 'reward_model'"
        yield from unused("reward.reward_model", reward.reward_model, every(reward.reward_model), need)


def _wrong_online(reward: RewardConfig) -> Iterator[str]:
    """Why a reward model cannot learn beside the policy."""
    where, model, online = "reward.reward_model", reward.reward_model, reward.reward_model.online
    named = [name for name, each in reward.components.items() if each.reward == REWARD_MODEL]
    if online is None or REWARD_MODEL not in rewards_asked(reward):
        return
    if len(named) != 1:
        yield f"'{where}.online' needs one component of 'reward.components' with reward: reward_model, not {len(named)}"
    elif online.outcome not in reward.components.keys() - named:
        near = suggestion(online.outcome, reward.components.keys() - named)
        yield f"'{where}.online.outcome': unknown component '{online.outcome}': {near}"
    elif reward.components[named[0]].reward_kwargs:
        yield f"'reward.components.{named[0]}.reward_kwargs' has no effect with '{where}.online': set '{where}' itself"
    elif model.activation == "none":
        yield f"'{where}.activation=none' does not fit '{where}.online', which learns probabilities: leave it out"


def rewards_asked(reward: RewardConfig) -> set[str]:
    """The rewards that are named."""
    return {each.reward for each in reward.components.values()} or {reward.name}
