"""Reward functions in TRL's form: `reward_func(prompts, completions, **columns) -> list[float]`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

from pydantic import JsonValue

from agentrl.config.reward import RewardConfig
from agentrl.errors import ConfigError, Kind, RewardError
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.functions.managers import calling, takes_lists
from agentrl.rewards.reward_view import ENVIRONMENT
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message
from agentrl.utils.signatures import keyword_filter, name_of, parameters_of
from agentrl.utils.user_code import defined_at

RewardFunc = Callable[..., object]
_OF_ITS_TRAINER = ("trainer_state", "log_extra", "log_metric")
_ENVIRONMENTS = "environments"


def takes_completions(function: RewardFunc) -> bool:
    """Whether a function has TRL's form, that is, a parameter `completions`."""
    return "completions" in parameters_of(function, f"reward '{name_of(function)}'")


class RewardFuncs:
    """Sum of reward functions; each function's score is also returned under the function's name, as TRL logs it.

    A function receives lists with one entry per rollout. With reward_manager.name=batch, a call covers several
    rollouts, otherwise one.
    `prompts` and `completions` contain texts if the row's prompt was text, otherwise lists of messages (one assistant
    message per model turn).
    Other arguments are the row's columns, including `ground_truth` and `data_source`, and the entries of `RolloutInfo`
    (see `rewards.reward_view`), such as `completion_ids`. During a run with an environment, `environments` contains the
    environment objects. If a function returns None for a rollout, only the scores of the other functions are summed. If
    all functions return None, the rollout has no score and is excluded from its group.

    Raises:
        ConfigError: two functions have the same name, a function needs an object of TRL's trainer, or the manager
            cannot call functions of this form.
    """

    def __init__(self, functions: Sequence[RewardFunc], config: RewardConfig, has_environment: bool = False) -> None:
        if config.reward_manager.source == "register" and config.reward_manager.name == "prime":
            raise ConfigError.at(
                "reward.reward_manager.name",
                Kind.CONFLICT,
                "reward.reward_manager.name=prime calls compute_score(data_source, solution_str, ground_truth,"
                " extra_info); for functions of (prompts, completions, **columns), set naive or batch",
            )
        self._rewards = {name_of(function): _adapted(function, config) for function in functions}
        if len(self._rewards) < len(functions):
            raise ConfigError.keyless(
                f"reward functions must have different names, got {', '.join(map(name_of, functions))}"
            )
        for function in functions:
            _check_signature(function, has_environment)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`."""
        asked = (each(data_source, solution_str, ground_truth, extra_info) for each in self._rewards.values())
        # concurrent: with the manager `batch`, each function has its own batches, and the waiting times overlap
        answers = zip(self._rewards, await asyncio.gather(*asked), strict=True)
        scores = {name: answer["score"] for name, answer in answers if answer["applies"]}
        if not scores:
            raise InfraError(f"row {extra_info.get('index', 'unknown')}: every reward function returned None")
        return {"score": sum(scores.values()), **scores}

    def close(self) -> None:
        """Stop the threads of the functions."""
        for reward in self._rewards.values():
            close_reward(reward)


def _check_signature(function: RewardFunc, has_environment: bool) -> None:
    """Reject functions that need TRL's trainer. Missing columns are not detected, because rows are not read yet."""
    missing = dict.fromkeys(_OF_ITS_TRAINER, "which only TRL's trainer provides")
    if not has_environment:
        missing[_ENVIRONMENTS] = "which only a run with an environment has"
    for key, parameter in parameters_of(function, f"reward '{name_of(function)}'").items():
        if key in missing and parameter.default is parameter.empty:
            raise ConfigError.keyless(
                f"reward '{name_of(function)}' needs '{key}', {missing[key]}:"
                f" add a default, such as {key}=None{defined_at(function)}"
            )


def _adapted(function: RewardFunc, config: RewardConfig) -> Reward:
    """Return a reward that calls `function` with the lists of one rollout, or of several with the manager `batch`."""
    takes = keyword_filter(function)

    def several(
        data_sources: list[str],
        solution_strs: list[str],
        ground_truths: list[JsonValue],
        extra_infos: list[Mapping[str, object]],
    ) -> list[object] | Awaitable[list[object]]:
        rows = list(map(_columns, data_sources, solution_strs, ground_truths, extra_infos))
        names = dict.fromkeys(chain.from_iterable(rows))  # a column that a row lacks is None
        returned = function(**takes({name: [row.get(name) for row in rows] for name in names}))
        return _awaited(returned, len(rows)) if inspect.isawaitable(returned) else _answers(returned, len(rows))

    def one(data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> object:
        answers = several([data_source], [solution_str], [ground_truth], [extra_info])
        return _only(answers) if inspect.isawaitable(answers) else answers[0]

    return calling(config)(several if takes_lists(config) else one, {}, name_of(function))


def _columns(
    data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
) -> dict[str, object]:
    """Return the values of one row by argument name; a function receives a list for each argument."""
    prompts, completions = _dialogue(solution_str, extra_info)
    own = {"data_source": data_source, "ground_truth": ground_truth, "prompts": prompts, "completions": completions}
    environments = {_ENVIRONMENTS: extra_info[ENVIRONMENT]} if ENVIRONMENT in extra_info else {}
    return {**extra_info, **own, **environments}


def _dialogue(solution_str: str, extra_info: Mapping[str, object]) -> tuple[object, object]:
    """Return the prompt and the completion of a rollout."""
    prompt = cast("Sequence[Message]", extra_info["prompt"])
    if extra_info.get("text_prompt"):
        return prompt[-1]["content"], solution_str  # without a system message, which comes from the configuration
    turns = cast("list[str]", extra_info["turn_texts"])
    return prompt, [{"role": "assistant", "content": text} for text in turns]


async def _awaited(running: Awaitable[object], num_rows: int) -> list[object]:
    return _answers(await running, num_rows)


async def _only(running: Awaitable[list[object]]) -> object:
    return (await running)[0]


def _answers(returned: object, num_rows: int) -> list[object]:
    """Return for each row the score and `applies`, which is False if the function returned None for the row."""
    try:
        values = [] if isinstance(returned, (str, Mapping)) else list(cast("Iterable[object]", returned))
    except TypeError:  # a number, or an array without dimensions
        values = []
    if len(values) != num_rows:
        wanted = "one number for one completion" if num_rows == 1 else f"{num_rows} numbers, one per completion"
        raise RewardError(f"expected a list of {wanted}, got {returned!r:.200}")
    return [{"score": 0.0, "applies": False} if value is None else _applies(value) for value in values]


def _applies(value: object) -> dict[str, object]:
    return {"score": value, "applies": True}
