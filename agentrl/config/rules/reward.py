"""Rules for combinations of `reward.*`."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.config.reward import RewardConfig
from agentrl.config.rules.unused import every, unused, unused_with, wrong
from agentrl.errors import Kind, Problem, suggestion

JUDGE = "judge"
"""Value of `reward.name`, or of a component's `reward`, for the LLM judge."""
REWARD_MODEL = "reward_model"
"""Value of `reward.name`, or of a component's `reward`, for the reward model."""

TOOL_REWARDS = "tool_rewards"
"""Value of `reward.name`, or of a component's `reward`, for the rewards of tools and environments."""


def ignored_by_reward(reward: RewardConfig) -> Iterator[Problem]:
    """Yield one error per option that another option replaces."""
    custom = reward.custom_reward_function
    if reward.components:
        yield from unused_with("reward", reward, ("name",), "`reward.components`")
        yield from unused_with("reward.custom_reward_function", custom, every(custom), "`reward.components`")
    elif custom.path is None:
        need = "`reward.custom_reward_function.path`"
        yield from unused("reward.custom_reward_function", custom, ("name",), need)
    else:
        yield from unused_with("reward", reward, ("name",), "`reward.custom_reward_function.path`")
    if reward.sandbox is not None and reward.sandbox_fusion.url is not None:
        yield from unused_with("reward", reward, ("sandbox",), "`reward.sandbox_fusion.url`")
    yield from _wrong_online(reward)


def idle_in_reward(reward: RewardConfig) -> Iterator[Problem]:
    """Yield one error per option of an unused judge or reward model.

    Replay does not check these options, because replay's option `--reward` may use the judge or the reward model.
    """
    if JUDGE not in rewards_asked(reward):
        yield from unused(
            "reward.judge", reward.judge, every(reward.judge), "`reward.name=judge` or a component 'judge'"
        )
    if REWARD_MODEL not in rewards_asked(reward):
        need = "`reward.name=reward_model` or a component 'reward_model'"
        yield from unused("reward.reward_model", reward.reward_model, every(reward.reward_model), need)


def missing_tools(reward: RewardConfig, *, has_tools: bool) -> Iterator[Problem]:
    """Yield an error if the score is the reward of tools, but the run has no tools."""
    if TOOL_REWARDS in rewards_asked(reward) and not has_tools:
        key = "reward.components" if reward.components else "reward.name"
        need = "`rollout.multi_turn.environment` or other tools"
        yield wrong(key, f"needs {need} for the reward '{TOOL_REWARDS}'", Kind.MISSING)


def _wrong_online(reward: RewardConfig) -> Iterator[Problem]:
    """Yield errors of an online reward model's configuration."""
    where, model, online = "reward.reward_model", reward.reward_model, reward.reward_model.online
    named = [name for name, each in reward.components.items() if each.reward == REWARD_MODEL]
    if online is None or REWARD_MODEL not in rewards_asked(reward):
        return
    if len(named) != 1:
        yield wrong(
            f"{where}.online",
            f"needs exactly one component with reward: reward_model in `reward.components`, not {len(named)}",
            Kind.MISSING,
        )
    elif online.outcome not in reward.components.keys() - named:
        near = suggestion(online.outcome, reward.components.keys() - named)
        yield Problem(
            f"{where}.online.outcome",
            Kind.WRONG_VALUE,
            f"`{where}.online.outcome`: unknown component '{online.outcome}': {near}",
        )
    elif reward.components[named[0]].reward_kwargs:
        yield wrong(
            f"reward.components.{named[0]}.reward_kwargs",
            f"has no effect with `{where}.online`: set `{where}.*` instead",
            Kind.UNUSED,
        )
    elif model.activation == "none":
        yield wrong(
            f"{where}.activation",
            f"does not fit `{where}.online`, which learns probabilities: remove it",
            Kind.CONFLICT,
            value="none",
        )


def rewards_asked(reward: RewardConfig) -> set[str]:
    """Names of the configured rewards."""
    return {each.reward for each in reward.components.values()} or {reward.name}
