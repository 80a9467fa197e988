"""What all exports share: which rollouts are taken, the tools a task offered, and what was left out, counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.data.dialogues import read_dialogue
from agentrl.data.fields import FieldError
from agentrl.data.rows import Row
from agentrl.errors import DataError
from agentrl.store.stored import StoredRollout
from agentrl.task import Task

Groups: TypeAlias = Iterable[Sequence[StoredRollout]]

COLUMNS = (
    *("messages", "ground_truth", "data_source", "index", "agent_name", "tools_kwargs", "interaction_kwargs"),
    *("extra_info", "infra_failed", "rewards", "trajectories.messages"),
)
"""What an export reads of a store."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rollouts are taken.

    Attributes:
        min_reward: the least reward.
        tools: schemas of the run's tools, as its provenance has them.
        left_out: why something was not taken -> how often; `examples` has one of each that needs it. Both are filled
            while rows are made.
    """

    min_reward: float | None = None
    tools: Sequence[JsonValue] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def rollouts(self, group: Sequence[StoredRollout]) -> Iterator[StoredRollout]:
        """Those of `group` that are taken; one that failed never is."""
        for stored in group:
            if stored.rollout.failed:
                self.left_out["rollouts that failed"] += 1
            elif self.min_reward is not None and not stored.rollout.reward >= self.min_reward:
                self.left_out[f"rollouts with a reward below {self.min_reward:g}"] += 1
            else:
                yield stored

    def can_be_imitated(self, stored: StoredRollout, row: Row) -> bool:
        """Whether the `messages` and `tools` of `row` are a dialogue that can be trained on; else it is left out."""
        try:
            read_dialogue(row)
        except FieldError as error:
            reason = "conversations that cannot be imitated"
            self.left_out[reason] += 1
            self.examples.setdefault(reason, f"rollout {stored.number} of '{stored.task.uid}', {error}")
            return False
        return True

    def offered(self, task: Task) -> list[JsonValue]:
        """Schemas of the tools that `task` offered: its own where an import kept them, else the run's."""
        own = task.extra_info.get("tools")
        if isinstance(own, list):
            return own
        selected = task.tool_options.available_tools
        return [tool for tool in self.tools if selected is None or _name(tool) in selected]


Rows: TypeAlias = Callable[[Groups, Wanted], Iterator[Mapping[str, object]]]
"""A format: the rows of a file, one after the other."""


def kept_tools(text: str | None) -> list[JsonValue]:
    """The tools of a provenance.

    Raises:
        DataError: they cannot be read.
    """
    try:
        tools = json.loads(text or "[]")
    except ValueError as error:
        raise DataError(f"the tools that the run kept are not JSON: {error}") from error
    if not isinstance(tools, list):
        raise DataError("the tools that the run kept are not a list")
    return tools


def place(stored: StoredRollout) -> dict[str, object]:
    """Where a rollout came from, for a row."""
    task = stored.task
    return {"uid": task.uid, "step": stored.step, "data_source": task.data_source, "ground_truth": task.ground_truth}


def _name(tool: JsonValue) -> JsonValue:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
