"""Selects and weights the trajectories of a gateway rollout for training (`rollout.gateway`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.config.rollout import GatewayConfig
from agentrl.errors import ConfigError, Kind
from agentrl.gateway.lines import Line
from agentrl.registry import load_object
from agentrl.types.messages import Message
from agentrl.types.trajectory import Trajectory
from agentrl.utils.user_code import defined_at


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trajectory of a rollout, as the functions of `rollout.gateway.train` and `rollout.gateway.credit` get it.

    Attributes:
        messages: all messages of the trajectory, including messages copied from another trajectory.
        tools: names of the tools that the trajectory's requests offered.
        num_turns: number of turns of the trajectory, without copied turns.
        is_main: whether the trajectory's conversation has the tools and system texts that occur in the most turns of
            the rollout.
        is_branch: whether the beginning of the trajectory is copied from another trajectory.
        is_discarded: whether the trajectory begins with an answer that the client did not use: the client used another
            answer to the same request.
    """

    messages: Sequence[Message]
    tools: Sequence[str]
    num_turns: int
    is_main: bool
    is_branch: bool
    is_discarded: bool


Choice = Callable[[Sequence[Candidate]], Sequence[float]]
"""Function that returns one number per trajectory.

For `train`, a number other than 0 means that the run trains on the trajectory; for `credit`, the number is the
trajectory's weight.
"""


def _all(candidates: Sequence[Candidate]) -> Sequence[float]:
    return [1.0] * len(candidates)


def _main(candidates: Sequence[Candidate]) -> Sequence[float]:
    return [each.is_main and not each.is_discarded for each in candidates]


def _continued(candidates: Sequence[Candidate]) -> Sequence[float]:
    offered = any(each.tools for each in candidates)
    return [not each.is_discarded and not (offered and _is_side(each)) for each in candidates]


def _is_side(candidate: Candidate) -> bool:
    return not candidate.tools and candidate.num_turns == 1 and not candidate.is_main


def _per_trajectory(candidates: Sequence[Candidate]) -> Sequence[float]:
    return [1.0 / len(candidates)] * len(candidates)


_TRAIN: dict[str, Choice] = {"all": _all, "main": _main, "continued": _continued}
_CREDIT: dict[str, Choice] = {"shared": _all, "per_trajectory": _per_trajectory}


class CreditRule:
    """The rule with which a run selects and weights trajectories.

    Raises:
        UnknownNameError: a function that the configuration names cannot be loaded.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._train = _TRAIN.get(config.train) or load_object(config.train)
        self._credit = _CREDIT.get(config.credit) or load_object(config.credit)

    def apply(self, lines: Sequence[Line], trajectories: Sequence[Trajectory]) -> None:
        """Set the weight of each trajectory; `lines[i]` has the turns of `trajectories[i]`.

        Raises:
            ConfigError: a function did not return one finite number for each trajectory.
        """
        candidates = _candidates(lines, trajectories)
        chosen = [bool(each) for each in _checked("train", self._train, candidates)]
        trained = [each for each, is_trained in zip(candidates, chosen, strict=True) if is_trained]
        weights = iter(_checked("credit", self._credit, trained))
        for trajectory, is_trained in zip(trajectories, chosen, strict=True):
            trajectory.weight = float(next(weights)) if is_trained else 0.0


def _candidates(lines: Sequence[Line], trajectories: Sequence[Trajectory]) -> list[Candidate]:
    return [
        Candidate(
            messages=trajectory.messages,
            tools=[schema.name for schema in line.turns[0].schemas],
            num_turns=len(line.turns),
            is_main=line.conversation == lines[-1].conversation,
            is_branch=line.start is not None,
            is_discarded=line.discarded,
        )
        for line, trajectory in zip(lines, trajectories, strict=True)
    ]


def _checked(key: str, choice: Choice, candidates: Sequence[Candidate]) -> Sequence[float]:
    """Call a rule, and check its result, because a user's function may return anything."""
    if not candidates:
        return []
    found = choice(candidates)
    good = isinstance(found, Sequence) and len(found) == len(candidates)
    if not good or not all(isinstance(each, int | float) and math.isfinite(each) for each in found):
        where = f"rollout.gateway.{key}"
        text = f"`{where}`{defined_at(choice)} must return one number for each of {len(candidates)} trajectories"
        raise ConfigError.at(where, Kind.WRONG_VALUE, f"{text}, not {found!r:.100}")
    return found
