"""What all ways of calling a reward function share: what it is given, what it may answer, whose fault a failure is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pydantic import JsonValue

from agentrl.blame import defined_at, told
from agentrl.errors import AgentRLError, ConfigError, RewardError, suggestion
from agentrl.offload import OverdueError, UnavailableError
from agentrl.rewards.base import NoVerdictError
from agentrl.signatures import keyword_filter, parameters_of
from agentrl.tools.base import InfraError

_LOGGER = logging.getLogger(__name__)
ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
"""What a reward function is given of a rollout."""
SEVERAL = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""What a batch reward function is given: a list of each."""


class RaisedError(RewardError):
    """What a function raised in another process, as `blame.told` has it."""


class ScoreFunction:
    """A reward function by its name, with what it takes.

    Raises:
        ConfigError: the function asks for something else than `given`, or does not take one of `kwargs`.
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
        """What to call it with: of `values`, one a name of `given`, what it takes."""
        return {**self._takes(dict(zip(self.given, values, strict=True))), **self.kwargs}

    def where(self, data_source: str, extra_info: Mapping[str, object]) -> str:
        """The reward and the row, for messages."""
        return f"reward '{self.name}' (data source '{data_source}', row {extra_info.get('index', 'unknown')})"

    def read(self, returned: object) -> dict[str, float]:
        """The numbers it returned; entries that are none are left out, which is told once each.

        Raises:
            RewardError: there is no score among them.
        """
        numbers, dropped = numbers_of(returned)
        self.tell_dropped(dropped)
        return numbers

    def tell_dropped(self, names: Sequence[str]) -> None:
        """Warn, once each, of entries that were left out."""
        for name in set(names) - self._dropped:
            self._dropped.add(name)
            _LOGGER.warning("reward '%s': entry '%s' is not a finite number and is left out", self.name, name)


@contextmanager
def blamed(where: str, timeout_s: float, place: str) -> Iterator[None]:
    """Says of what is raised inside whose fault it is.

    Raises:
        InfraError: the call hung, or said so itself.
        RewardError: the function raised.
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
    except Exception as error:  # whatever a user's function raises
        raise RewardError(f"{where} raised {told(error)}") from error


def numbers_of(returned: object) -> tuple[dict[str, float], list[str]]:
    """(numbers by name, names of entries that are no finite numbers), of a number or a dict with a `score`.

    Raises:
        RewardError: the score is missing or no finite number.
    """
    entries = returned if isinstance(returned, Mapping) else {"score": returned}
    if "score" not in entries:
        raise RewardError(f"the dict it returned has no 'score', only {', '.join(map(str, entries)) or 'nothing'}")
    numbers = {str(name): number(value) for name, value in entries.items()}
    if numbers["score"] is None:
        kind = NoVerdictError if entries["score"] is None else RewardError
        raise kind(f"expected a finite number or a dict with a 'score', got {entries['score']!r:.200}")
    kept = {name: value for name, value in numbers.items() if value is not None}
    return kept, [name for name in numbers if name not in kept]


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


def _check_signature(score: ScoreFunction) -> None:
    function, name = score.function, score.name
    parameters, takes = parameters_of(function, f"reward '{name}'"), keyword_filter(function)
    for key in score.kwargs:
        if not takes({key: None}) or key in score.given:
            known = suggestion(key, parameters)
            raise ConfigError(f"reward '{name}' takes no reward_kwargs.{key}: {known}{score.place}")
    for key, parameter in parameters.items():
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if not optional and not (takes({key: None}) and key in {*score.given, *score.kwargs}):
            given = ", ".join(score.given)
            raise ConfigError(
                f"reward '{name}' needs '{key}', but is called with {given}, by name: rename it,"
                f" or put it into reward_kwargs{score.place}"
            )
