"""A reward function as a `Reward`: off the event loop, with a deadline, its answer checked."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import cast

from pydantic import JsonValue

from agentrl.blame import defined_at, told
from agentrl.errors import AgentRLError, ConfigError, RewardError, suggestion
from agentrl.offload import Lane, Offload, OverdueError, UnavailableError, Work
from agentrl.signatures import keyword_filter, parameters_of
from agentrl.tools.base import InfraError

_LOGGER = logging.getLogger(__name__)
_GIVEN = ("data_source", "solution_str", "ground_truth", "extra_info")


class FunctionReward:
    """Calls `function(data_source=, solution_str=, ground_truth=, extra_info=, **kwargs)` with what it takes of these.

    Raises:
        ConfigError: the function asks for something else, or does not take one of `kwargs`.
    """

    def __init__(
        self, function: Callable[..., object], kwargs: Mapping[str, JsonValue], timeout_s: float, name: str
    ) -> None:
        _check_signature(function, kwargs, name)
        self._function = function
        self._kwargs = dict(kwargs)
        self._takes = keyword_filter(function)
        self._timeout_s = timeout_s
        self._name, self._place = name, defined_at(function)
        self._offload = Offload()
        self._lane = Lane(f"reward '{name}'")
        self._dropped: set[str] = set()

    async def __call__(
        self, data_source: str, solution_str: str, ground_truth: JsonValue, extra_info: Mapping[str, object]
    ) -> dict[str, float]:
        """Rewards by name, as in `rewards.base.Reward`.

        Raises:
            RewardError: the function raised, or gave no finite number.
            InfraError: it hung or said so itself: no verdict on the rollout, and no reason to end a long run.
        """
        where = f"reward '{self._name}' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"
        given = dict(zip(_GIVEN, (data_source, solution_str, ground_truth, dict(extra_info)), strict=True))
        call = partial(self._function, **self._takes(given), **self._kwargs)
        try:
            return self._numbers(await self._run(call))
        except OverdueError:
            raise InfraError(f"{where} took longer than {self._timeout_s:g} seconds{self._place}") from None
        except (InfraError, UnavailableError) as error:
            raise InfraError(f"{where}: {error}") from error
        except RewardError as error:
            raise RewardError(f"{where}: {error}{self._place}") from error
        except AgentRLError:
            raise
        except Exception as error:  # whatever a user's function raises
            raise RewardError(f"{where} raised {told(error)}") from error

    def close(self) -> None:
        """Let its threads end; one that hangs in the function is left behind."""
        self._offload.close()

    async def _run(self, call: Callable[[], object]) -> object:
        if inspect.iscoroutinefunction(self._function):
            work = cast("Work[object]", call)
            return await self._offload.run(work, self._timeout_s, self._lane)
        returned = await self._offload.run_function(call, self._timeout_s, self._lane)
        if inspect.isawaitable(returned):  # of an object whose __call__ is async, or of a plain wrapper
            return await self._offload.run(partial(_result, returned), self._timeout_s, self._lane)
        return returned

    def _numbers(self, returned: object) -> dict[str, float]:
        entries = returned if isinstance(returned, Mapping) else {"score": returned}
        if "score" not in entries:
            raise RewardError(f"the dict it returned has no 'score', only {', '.join(map(str, entries)) or 'nothing'}")
        numbers = {str(name): number(value) for name, value in entries.items()}
        if numbers["score"] is None:
            raise RewardError(f"expected a finite number or a dict with a 'score', got {entries['score']!r:.200}")
        for name in numbers.keys() - self._dropped:
            if numbers[name] is None:
                self._dropped.add(name)
                _LOGGER.warning("reward '%s': entry '%s' is not a finite number and is left out", self._name, name)
        return {name: value for name, value in numbers.items() if value is not None}


async def _result(running: Awaitable[object]) -> object:
    return await running


def number(value: object) -> float | None:
    """A finite number as a float: of Python, numpy or a one-element tensor, true and false too; None for all else."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        # float() of a one-element array warns, item() does not
        converted = float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]  # None if it fails
    except Exception:  # a user's object may raise anything
        return None
    return converted if math.isfinite(converted) else None


def _check_signature(function: Callable[..., object], kwargs: Mapping[str, JsonValue], name: str) -> None:
    parameters, place = parameters_of(function, f"reward '{name}'"), defined_at(function)
    takes = keyword_filter(function)
    for key in kwargs:
        if not takes({key: None}) or key in _GIVEN:
            raise ConfigError(f"reward '{name}' takes no reward_kwargs.{key}: {suggestion(key, parameters)}{place}")
    for key, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not optional and not (takes({key: None}) and key in {*_GIVEN, *kwargs}):
            given = ", ".join(_GIVEN)
            raise ConfigError(
                f"reward '{name}' needs '{key}', but is called with {given}, by name: rename it,"
                f" or put it into reward_kwargs{place}"
            )
