"""Collects the rollouts that a step does not train on, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from agentrl.algos.sample_filter import excluded_by_loss
from agentrl.types.excluded import Excluded
from agentrl.types.rollout import Group
from agentrl.types.sample import Sample

Drop = Callable[[Group, Sequence[Excluded]], None]
"""Records a group that no step trains on, with the reason for each rollout."""
Correct = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, float]]]


def ignore(group: Group, reasons: Sequence[Excluded]) -> None:
    """Record nothing."""


class Exclusions:
    """Collects the excluded rollouts of a step; `take` returns them at the end of the step.

    Args:
        save: how dropped groups are saved: without tokens (`summary`), with tokens (`tokens`) or not at all (`none`).
    """

    def __init__(self, save: Literal["summary", "tokens", "none"] = "summary") -> None:
        self._save = save
        self._groups: list[Group] = []
        self._reasons: dict[str, Excluded] = {}

    def drop(self, group: Group, reasons: Sequence[Excluded]) -> None:
        """See `Drop`."""
        self._reasons |= {f"{group.uid}/{number}": reason for number, reason in enumerate(reasons)}
        if self._save != "none":
            self._groups.append(group if self._save == "tokens" else _summary(group))

    def observed(self, correct: Correct, *, overlong: bool) -> Correct:
        """Wrap `correct` so that the rollouts it removes are recorded.

        Args:
            overlong: whether the loss omits truncated rollouts (`algorithm.overlong_filter`).
        """

        def correct_and_record(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, float]]:
            corrected, metrics = correct(samples)
            self._reasons |= excluded_by_loss(samples, corrected, overlong=overlong)
            return corrected, metrics

        return correct_and_record

    def take(self) -> tuple[list[Group], dict[str, Excluded]]:
        """Return (the dropped groups to save, rollout id -> reason), and clear both for the next step."""
        taken = self._groups, self._reasons
        self._groups, self._reasons = [], {}
        return taken


def _summary(group: Group) -> Group:
    """Return the group without tokens, messages and tool calls."""
    rollouts = [
        replace(each, trajectories=[], turn_rewards=[], tool_calls=[], operations=[]) for each in group.rollouts
    ]
    return Group(group.task, rollouts)
