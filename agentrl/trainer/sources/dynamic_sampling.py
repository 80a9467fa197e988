"""Dynamic sampling: filters and counts groups without a learning signal (DAPO, arXiv:2503.14476)."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from statistics import fmean

import torch

from agentrl.algos.advantages.members import equal
from agentrl.errors import AgentRLError, ConfigError, Kind, suggestion
from agentrl.rollouts.collector import refuse_all_failed
from agentrl.trainer.protocols import Metrics
from agentrl.trainer.sources.exclusions import Drop, ignore
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group, Rollout

PRINT_EVERY = 10
"""A message is printed after every `PRINT_EVERY` * G tasks drawn for one step (G: groups per step)."""


class NothingToLearnError(AgentRLError):
    """Raised if a step has drawn all the groups that it may draw, and none has a learning signal."""


class GroupKind(StrEnum):
    """Kind of a group: informative, or the reason why it is filtered."""

    INFORMATIVE = "informative"  # the rollouts have different values of the metric
    ALL_CORRECT = "all_correct"
    ALL_WRONG = "all_wrong"
    EQUAL = "equal"  # all values of the metric are equal, but only some rollouts are a success
    TOO_FEW = "too_few"  # fewer than two valid rollouts


class GroupFilter:
    """Passes only groups whose rollouts differ in a reward.

    Args:
        metric: name of the reward.
        groups_per_step: G, the number of groups of a step.
        max_batches: a step draws at most `max_batches` * G tasks, then uses the groups that passed; 0: no limit.
        success_threshold: a score of at least this value is a success.
        drop: records a filtered group.
    """

    def __init__(
        self, metric: str, groups_per_step: int, max_batches: int, success_threshold: float, drop: Drop = ignore
    ) -> None:
        self._metric = metric
        self._groups_per_step = groups_per_step
        self._max_batches = max_batches
        self._success_threshold = success_threshold
        self._drop = drop
        self._told_short = False
        self._start_step()

    @property
    def max_drawn(self) -> int | None:
        """Maximum number of tasks drawn for a step; None for no limit."""
        return self._max_batches * self._groups_per_step or None

    def passes(self, group: Group) -> bool:
        """Return whether the group is used for training. Rejected groups are counted, too.

        Raises:
            ConfigError: the group has no reward with the configured name.
            AllFailedError: at least G groups were rolled out for this step, and every rollout failed.
        """
        kind = self._kind(group)
        self._drawn[kind] += 1
        if kind is not GroupKind.INFORMATIVE:
            rule = Excluded.TOO_FEW if kind is GroupKind.TOO_FEW else Excluded.EQUAL_REWARDS
            self._drop(group, [each.excluded or rule for each in group.rollouts])
        self._scores += [each.reward for each in group.rollouts if each.valid]
        if not self._scores:
            self._failed.append(group)
            if len(self._failed) >= self._groups_per_step:
                refuse_all_failed(self._failed)
        if self._drawn.total() % (PRINT_EVERY * self._groups_per_step) == 0:
            print(f"{self._summary()}; drawing more tasks. Use tasks of medium difficulty, or a larger rollout.n")
        return kind is GroupKind.INFORMATIVE

    def end_step(self, num_taken: int) -> Metrics:
        """Return metrics `sampling/...` of a step that uses `num_taken` groups, and reset the counts.

        - `drawn`: groups finished since the last step; `rounds`: `drawn` / G
        - `filtered`: number of filtered groups; `all_correct`, `all_wrong`, `equal`, `too_few`: the kinds of filtered
          groups, as shares of `drawn`
        - `reward_mean`: mean score of all drawn rollouts

        Raises:
            NothingToLearnError: no group passed, and the step has reached its limit of drawn tasks.
        """
        if num_taken == 0 and self._drawn:
            raise NothingToLearnError(
                f"{self._summary()}, and algorithm.filter_groups.max_num_gen_batches={self._max_batches} is reached"
            )
        if num_taken < self._groups_per_step and not self._told_short:
            self._told_short = True
            print(
                f"a step trains on {num_taken} of {self._groups_per_step} groups (printed only once): {self._summary()}"
            )
        metrics = self._metrics()
        self._start_step()
        return metrics

    def _start_step(self) -> None:
        self._drawn = Counter[GroupKind]()
        self._scores: list[float] = []
        self._failed: list[Group] = []

    def _kind(self, group: Group) -> GroupKind:
        rollouts = [each for each in group.rollouts if each.valid]
        values = [self._value(each) for each in rollouts]
        if len(values) < 2:
            return GroupKind.TOO_FEW
        if not equal(torch.tensor(values, dtype=torch.float64)):
            return GroupKind.INFORMATIVE
        successes = {each.reward >= self._success_threshold for each in rollouts}
        return (
            GroupKind.EQUAL
            if len(successes) > 1
            else GroupKind.ALL_CORRECT
            if True in successes
            else GroupKind.ALL_WRONG
        )

    def _value(self, rollout: Rollout) -> float:
        if self._metric == "acc" and "acc" not in rollout.rewards:
            return rollout.reward  # verl's name for the score
        if self._metric not in rollout.rewards:
            near = suggestion(self._metric, rollout.rewards)
            raise ConfigError.at(
                "algorithm.filter_groups.metric",
                Kind.NOT_FOUND,
                f"`algorithm.filter_groups.metric`: a rollout has no reward '{self._metric}': {near}",
            )
        return rollout.rewards[self._metric]

    def _summary(self) -> str:
        drawn, informative = self._drawn.total(), self._drawn[GroupKind.INFORMATIVE]
        kinds = ", ".join(f"{self._drawn[kind]} {kind}" for kind in GroupKind if kind is not GroupKind.INFORMATIVE)
        return f"of {drawn} groups drawn for a step, {informative} have different values of '{self._metric}' ({kinds})"

    def _metrics(self) -> Metrics:
        drawn = self._drawn.total()
        others = [kind for kind in GroupKind if kind is not GroupKind.INFORMATIVE]
        return {
            "sampling/drawn": float(drawn),
            "sampling/filtered": float(sum(self._drawn[kind] for kind in others)),
            "sampling/rounds": drawn / self._groups_per_step,
            **{f"sampling/{kind}": self._drawn[kind] / max(1, drawn) for kind in others},
            **({"sampling/reward_mean": fmean(self._scores)} if self._scores else {}),
        }
