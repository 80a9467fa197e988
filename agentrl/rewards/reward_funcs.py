"""TRL's reward functions: `reward_func(prompts, completions, **columns) -> list[float]`, called with one rollout."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from agentrl.blame import defined_at
from agentrl.errors import ConfigError, RewardError
from agentrl.messages import Message
from agentrl.rewards.function import FunctionReward
from agentrl.signatures import keyword_filter, name_of, parameters_of
from agentrl.tools.base import InfraError

RewardFunc = Callable[..., object]
_OF_ITS_TRAINER = ("trainer_state", "environments", "log_extra", "log_metric")


def takes_completions(function: RewardFunc) -> bool:
    """Whether a function is written for TRL: it asks for `completions`."""
    return "completions" in parameters_of(function, f"reward '{name_of(function)}'")


class RewardFuncs:
    """Adds up reward functions; each one's number is kept under its name, as TRL logs them.

    A function is given lists of one: `prompts` and `completions` as text where the row's prompt was text, else as lists
    of messages (a completion has one assistant message a turn of the model); `completion_ids`; and as `columns` what
    the row brought, `ground_truth` and `data_source` among it. A function that answers None does not apply to the
    rollout: the others count; if none applies, the rollout has no score and takes no part in its group.

    Raises:
        ConfigError: two functions of one name, or one that needs an object of TRL's trainer.
    """

    def __init__(self, functions: Sequence[RewardFunc], timeout_s: float) -> None:
        self._rewards = {name_of(function): _adapted(function, timeout_s) for function in functions}
        if len(self._rewards) < len(functions):
            raise ConfigError(f"rewards need names of their own, given {', '.join(map(name_of, functions))}")
        for function in functions:
            _check_signature(function)

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`."""
        scores: dict[str, float] = {}
        for name, reward in self._rewards.items():
            answer = await reward(data_source, solution_str, ground_truth, extra_info)
            if answer["applies"]:
                scores[name] = answer["score"]
        if not scores:
            raise InfraError(f"row {extra_info.get('index', 'unknown')}: every reward function answered None")
        return {"score": sum(scores.values()), **scores}

    def close(self) -> None:
        """Let the threads of its functions end."""
        for reward in self._rewards.values():
            reward.close()


def _check_signature(function: RewardFunc) -> None:
    """Refuse what cannot be handed over; which columns the rows have is not known yet."""
    for key, parameter in parameters_of(function, f"reward '{name_of(function)}'").items():
        if key in _OF_ITS_TRAINER and parameter.default is parameter.empty:
            raise ConfigError(
                f"reward '{name_of(function)}' needs '{key}', which only TRL's trainer has:"
                f" give it a default, such as {key}=None{defined_at(function)}"
            )


def _adapted(function: RewardFunc, timeout_s: float) -> FunctionReward:
    """`function` as a `compute_score`."""
    takes = keyword_filter(function)

    def call(
        data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> Mapping[str, object] | Awaitable[Mapping[str, object]]:
        columns = {**extra_info, "data_source": data_source, "ground_truth": ground_truth}
        columns["prompts"], columns["completions"] = _dialogue(solution_str, extra_info)
        returned = function(**takes({name: [value] for name, value in columns.items()}))
        return _awaited(returned) if inspect.isawaitable(returned) else _only(returned)

    return FunctionReward(call, {}, timeout_s, name_of(function))


def _dialogue(solution_str: str, extra_info: Mapping[str, object]) -> tuple[object, object]:
    """Prompt and completion of a rollout."""
    prompt = cast("Sequence[Message]", extra_info["prompt"])
    if extra_info.get("text_prompt"):
        return prompt[-1]["content"], solution_str  # a system message before it is the configuration's
    turns = cast("list[str]", extra_info["turn_texts"])
    return prompt, [{"role": "assistant", "content": text} for text in turns]


async def _awaited(running: Awaitable[object]) -> Mapping[str, object]:
    return _only(await running)


def _only(returned: object) -> Mapping[str, object]:
    """The one score of a list or an array of one, and whether the function applies: it answers None where not."""
    try:
        values = [] if isinstance(returned, (str, Mapping)) else list(cast("Iterable[object]", returned))
    except TypeError:  # a number, or an array that is one
        values = []
    if len(values) != 1:
        raise RewardError(f"expected a list of one number, as there was one completion, got {returned!r:.200}")
    return {"score": 0.0, "applies": False} if values[0] is None else {"score": values[0], "applies": True}
