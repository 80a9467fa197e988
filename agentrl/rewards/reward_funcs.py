"""TRL's reward functions: `reward_func(prompts, completions, **columns) -> list[float]`, called with one rollout."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from agentrl.errors import ConfigError, RewardError
from agentrl.rewards.function import FunctionReward
from agentrl.signatures import keyword_filter, name_of, parameters_of

RewardFunc = Callable[..., object]


def takes_completions(function: RewardFunc) -> bool:
    """Whether a function is written for TRL: it asks for `completions`."""
    return "completions" in parameters_of(function, f"reward '{name_of(function)}'")


class RewardFuncs:
    """Adds up reward functions; each one's number is kept under its name, as TRL logs them.

    A function is given lists of one: `prompts` and `completions` as lists of messages (a completion has one assistant
    message a turn of the model), and as `columns` what the row brought, `ground_truth` and `data_source` among it.

    Raises:
        ConfigError: two functions of one name.
    """

    def __init__(self, functions: Sequence[RewardFunc], timeout_s: float) -> None:
        self._rewards = {name_of(function): _adapted(function, timeout_s) for function in functions}
        if len(self._rewards) < len(functions):
            raise ConfigError(f"rewards need names of their own, given {', '.join(map(name_of, functions))}")

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """See `rewards.base.Reward`."""
        scores = {
            name: (await reward(data_source, solution_str, ground_truth, extra_info))["score"]
            for name, reward in self._rewards.items()
        }
        return {"score": sum(scores.values()), **scores}

    def close(self) -> None:
        """Let the threads of its functions end."""
        for reward in self._rewards.values():
            reward.close()


def _adapted(function: RewardFunc, timeout_s: float) -> FunctionReward:
    """`function` as a `compute_score`."""
    takes = keyword_filter(function)

    def arguments(data_source: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> dict[str, object]:
        columns = {**extra_info, "data_source": data_source, "ground_truth": ground_truth}
        turns = cast("list[str]", extra_info["turn_texts"])
        completion = [{"role": "assistant", "content": text} for text in turns]
        lists = {name: [value] for name, value in columns.items()}
        return takes({**lists, "prompts": [extra_info["prompt"]], "completions": [completion]})

    def call(data_source: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> object:
        return _only(function(**arguments(data_source, ground_truth, extra_info)))

    async def call_async(data_source: str, ground_truth: JsonValue, extra_info: Mapping[str, object]) -> object:
        running = cast("Awaitable[object]", function(**arguments(data_source, ground_truth, extra_info)))
        return _only(await running)

    chosen = call_async if inspect.iscoroutinefunction(function) else call
    return FunctionReward(chosen, {}, timeout_s, name_of(function))


def _only(returned: object) -> object:
    """The one score of a list of one; None there means that the function does not apply, which counts as 0."""
    if not isinstance(returned, Sequence) or isinstance(returned, str) or len(returned) != 1:
        raise RewardError(f"expected a list of one number, as there was one completion, got {returned!r:.200}")
    return 0.0 if returned[0] is None else returned[0]
