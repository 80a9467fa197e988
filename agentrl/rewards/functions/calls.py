"""Helpers for all ways to call a reward function: arguments, returned numbers, errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic import JsonValue

from agentrl.concurrency import OverdueError, UnavailableError
from agentrl.errors import AgentRLError, ConfigError, Kind, RewardError, suggestion
from agentrl.rewards.base import NoVerdictError
from agentrl.tools.base import InfraError
from agentrl.utils.signatures import keyword_filter, parameters_of
from agentrl.utils.user_code import defined_at, format_error

_LOGGER = logging.getLogger(__name__)
ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Arguments of a reward function, for one rollout."""
SEVERAL = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""Arguments of a batch reward function; each is a list with one entry per rollout."""


class RaisedError(RewardError):
    """An error that a function raised in another process; the message is the text of `format_error`."""


class ScoreFunction:
    """A reward function with its name and keyword arguments.

    Raises:
        ConfigError: the function needs an argument that is not in `given`, or does not accept one of `kwargs`.
    """

    def __init__(
        self, function: Callable[..., object], kwargs: Mapping[str, JsonValue], name: str, given: Sequence[str] = ONE
    ) -> None:
        self.function, self.kwargs, self.name, self.given = function, dict(kwargs), name, given
        self.place = defined_at(function)
        _check_signature(self)
        self._takes = keyword_filter(function)
        self._dropped: set[str] = set()

    def arguments(self, *values: object) -> dict[str, object]:
        """Return the arguments of a call: `kwargs`, and each of `values` that the function accepts.

        `given` contains the names of `values`, in the same order.
        """
        return {**self._takes(dict(zip(self.given, values, strict=True))), **self.kwargs}

    def where(self, data_source: str, extra_info: Mapping[str, object]) -> str:
        """Return the name of the reward and the row, for messages."""
        return f"reward '{self.name}' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"

    def read(self, returned: object) -> dict[str, float]:
        """Return the numbers of a function's result. Other entries are dropped, with one warning per name.

        Raises:
            RewardError: the result has no score.
        """
        numbers, dropped = numbers_of(returned)
        self.warn_dropped(dropped)
        return numbers

    def warn_dropped(self, names: Sequence[str]) -> None:
        """Warn about dropped entries, once per name."""
        for name in set(names) - self._dropped:
            self._dropped.add(name)
            _LOGGER.warning("reward '%s': entry '%s' is not a finite number and is ignored", self.name, name)


@contextmanager
def errors_with_place(where: str, timeout_s: float, place: str) -> Iterator[None]:
    """Turn exceptions of a call into `InfraError` or `RewardError` that name the reward and the row.

    Raises:
        InfraError: the call timed out, too many earlier calls still hang, or the function raised `InfraError`.
        RewardError: the function raised another exception. Other kinds of `AgentRLError` are raised unchanged.
    """
    try:
        yield
    except OverdueError:
        raise InfraError(f"{where} took longer than {timeout_s:g} seconds{place}") from None
    except (InfraError, UnavailableError) as error:
        raise InfraError(f"{where}: {error}") from error
    except RaisedError as error:
        raise RewardError(f"{where} raised {error}") from None
    except RewardError as error:
        raise type(error)(f"{where}: {error}{place}") from error
    except AgentRLError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise RewardError(f"{where} raised {format_error(error)}") from error


def numbers_of(returned: object) -> tuple[dict[str, float], list[str]]:
    """Split a number, or a dict with a `score`, into (numbers by name, names of entries that are not finite numbers).

    Raises:
        NoVerdictError: the score is None.
        RewardError: the score is missing or not a finite number.
    """
    entries = returned if isinstance(returned, Mapping) else {"score": returned}
    if "score" not in entries:
        raise RewardError(f"the returned dict has no 'score', only {', '.join(map(str, entries)) or 'nothing'}")
    numbers = {str(name): number(value) for name, value in entries.items()}
    if numbers["score"] is None:
        kind = NoVerdictError if entries["score"] is None else RewardError
        raise kind(f"expected a finite number or a dict with a 'score', got {entries['score']!r:.200}")
    kept = {name: value for name, value in numbers.items() if value is not None}
    return kept, [name for name in numbers if name not in kept]


def number(value: object) -> float | None:
    """Convert a finite number or boolean (Python, numpy, one-element tensor) to a float; else return None."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    try:
        # float() of a one-element array warns, item() does not
        converted = float(value.item() if hasattr(value, "item") else value)  # type: ignore[arg-type]  # None if it fails
    except Exception:  # a user's object may raise anything
        return None
    return converted if math.isfinite(converted) else None


def _check_signature(score: ScoreFunction) -> None:
    function, name = score.function, score.name
    parameters, takes = parameters_of(function, f"reward '{name}'"), keyword_filter(function)
    for key in score.kwargs:
        if not takes({key: None}) or key in score.given:
            known = suggestion(key, parameters)
            raise ConfigError.at(
                "reward.custom_reward_function.reward_kwargs",
                Kind.NOT_FOUND,
                f"reward '{name}' does not accept reward_kwargs.{key}: {known}{score.place}",
            )
    for key, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not optional and not (takes({key: None}) and key in {*score.given, *score.kwargs}):
            given = ", ".join(score.given)
            raise ConfigError.at(
                "reward.custom_reward_function.reward_kwargs",
                Kind.MISSING,
                f"reward '{name}' needs '{key}', but gets only {given}: rename the parameter,"
                f" or set it in reward_kwargs{score.place}",
            )
