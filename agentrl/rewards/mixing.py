"""Mixture of several rewards: a weighted sum, in which gates and priorities decide which rewards count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue, ValidationError

from agentrl.config.base import Section
from agentrl.config.reward import CustomRewardConfig, RewardConfig
from agentrl.config.reward_sources import ComponentConfig, asked_order, by_priority
from agentrl.errors import AgentRLError, ConfigError, Kind, suggestion, with_place
from agentrl.rewards.base import NoVerdictError, Reward, close_reward, reward_models
from agentrl.tools.base import InfraError

Values = dict[str, float]


class _Call(NamedTuple):
    """Arguments of a reward."""

    data_source: str
    solution_str: str
    ground_truth: JsonValue
    extra_info: Mapping[str, object]


class Mixture:
    """The sum of weight * value over the components that count.

    - The gate of a component is another component. A component with a gate is called, and counts, only if the gate's
      score reaches `gate_threshold`.
    - Components with a priority are called in the order of their priorities, until the score of one component reaches
      this component's `verdict_from` (if `verdict_from` is not set, any score is enough). Of the components with a
      priority, only this component counts. If no score reaches `verdict_from`, the last one with a verdict counts.
    - A component without a verdict adds nothing. If no component has a verdict, the rollout has no score.

    Worked example: `right: {reward: gsm8k}` and `style: {reward: judge, weight: 0.5, gate: right}`. If gsm8k returns 1
    and the judge 0.8, the result is

        {"score": 1 + 0.5 * 0.8, "right": 1.0, "style": 0.8}

    If gsm8k returns 0, the result is {"score": 0.0, "right": 0.0}. Values of a component other than `score` are
    returned under <component>/<name>.
    """

    def __init__(self, components: Mapping[str, ComponentConfig], rewards: Mapping[str, Reward]) -> None:
        self._components, self._rewards = components, rewards
        self._order, self._ranked = asked_order(components), by_priority(components)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`.

        Raises:
            InfraError: a component failed for reasons outside the policy, or no component had a verdict.
        """
        answers = await self._ask_all(_Call(data_source, solution_str, ground_truth, extra_info))
        found = {name: answers[name] for name in self._components if name in answers}
        if not found:
            row = extra_info.get("index", "unknown")
            raise InfraError(f"row {row} of '{data_source}': no component of the reward returned a verdict")
        passed_over = {*self._ranked} - {self._chosen(found)}
        counted = [name for name in found if name not in passed_over]
        score = sum(self._components[name].weight * found[name]["score"] for name in counted)
        return {"score": score, **{key: value for name, each in found.items() for key, value in _named(name, each)}}

    def close(self) -> None:
        """Close every component."""
        for reward in self._rewards.values():
            close_reward(reward)

    async def _ask_all(self, call: _Call) -> dict[str, Values]:
        """Return the values of components with a verdict. A component waits only for components that it depends on."""
        asked: dict[str, asyncio.Task[Values | None]] = {}
        try:
            async with asyncio.TaskGroup() as together:
                for name in self._order:  # dependencies come first
                    asked[name] = together.create_task(self._ask(name, call, dict(asked)))
        except BaseExceptionGroup as failures:
            raise _most_severe(failures.exceptions) from None
        return {name: values for name, task in asked.items() if (values := task.result()) is not None}

    async def _ask(self, name: str, call: _Call, before: Mapping[str, asyncio.Task[Values | None]]) -> Values | None:
        """Return the values of one component; None if the component is skipped or has no verdict."""
        component = self._components[name]
        if component.gate is not None:
            gate = await before[component.gate]
            if gate is None or gate["score"] < component.gate_threshold:
                return None
        for better in self._ranked[: self._ranked.index(name)] if name in self._ranked else ():
            if self._is_sure(better, await before[better]):
                return None
        try:
            return await self._rewards[name](*call)
        except NoVerdictError:
            return None
        except (AgentRLError, InfraError) as error:
            raise with_place(error, f"component '{name}'") from error

    def _is_sure(self, name: str, values: Values | None) -> bool:
        least = self._components[name].verdict_from
        return values is not None and (least is None or values["score"] >= least)

    def _chosen(self, found: Mapping[str, Values]) -> str | None:
        """Return, of the components with a priority, the one that counts.

        It is the first one that reaches its `verdict_from`; if none does, it is the last one with a verdict.
        """
        with_score = [name for name in self._ranked if name in found]
        sure = [name for name in with_score if self._is_sure(name, found[name])]
        return sure[0] if sure else with_score[-1] if with_score else None


def load_mixture(config: RewardConfig, load: Callable[[RewardConfig], Reward]) -> Mixture:
    """Load the mixture of `reward.components`.

    Args:
        load: loads the reward of a configuration without components.

    Raises:
        AgentRLError: a component cannot be used; the message names the component.
    """
    rewards = {}
    for name, component in config.components.items():
        try:
            rewards[name] = load(component_config(component, config))
        except AgentRLError as error:
            raise with_place(error, f"reward.components.{name}") from error
    return Mixture(config.components, rewards)


def component_config(component: ComponentConfig, config: RewardConfig) -> RewardConfig:
    """Return `reward.*` for one component: with the component's name and arguments, without the options of the mixture.

    Raises:
        ConfigError: the section of the component's reward, such as `reward.judge`, does not accept an argument.
    """
    whole = {name: getattr(RewardConfig(), name) for name in _OF_MIXTURE}
    own = config.model_copy(update={**whole, "name": component.reward})
    if component.reward in reward_models.names():
        return with_section(own, component.reward, component.reward_kwargs)
    path, separator, function = component.reward.rpartition(":")
    custom = CustomRewardConfig(reward_kwargs=component.reward_kwargs)
    if separator:
        own = own.model_copy(update={"name": RewardConfig().name})
        custom = CustomRewardConfig(path=Path(path), name=function, reward_kwargs=component.reward_kwargs)
    return own.model_copy(update={"custom_reward_function": custom})


def with_section(config: RewardConfig, name: str, values: Mapping[str, JsonValue]) -> RewardConfig:
    """Return `config` with `values` merged into the section `name`.

    Raises:
        ConfigError: the section does not accept a key or a value.
    """
    section: Section = getattr(config, name)
    for key in values:
        if key not in type(section).model_fields:
            raise ConfigError.at(
                "reward.components",
                Kind.NOT_FOUND,
                f"reward_kwargs.{key}: reward.{name} has no such key: {suggestion(key, type(section).model_fields)}",
            )
    try:
        changed = type(section).model_validate({**section.model_dump(exclude_unset=True), **values})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError.at(
            "reward.components",
            Kind.WRONG_VALUE,
            f"reward_kwargs.{where}: {problem['msg'].removeprefix('Value error, ')}",
        ) from None
    return config.model_copy(update={name: changed})


_OF_MIXTURE = ("components", "custom_reward_function", "range", "overlong_buffer")
"""Keys of `reward` that apply to the mixture's score, not to single components."""


def _named(name: str, values: Values) -> Iterator[tuple[str, float]]:
    """Yield the rewards of one component, with the component's name as key or prefix."""
    for key, value in values.items():
        yield name if key == "score" else f"{name}/{key}", value


def _most_severe(failures: Sequence[BaseException]) -> BaseException:
    """Choose the error to raise. Errors that end the run have priority over errors that end only one rollout."""
    return next((each for each in failures if not isinstance(each, InfraError)), failures[0])
