"""Selection of rollouts for all exports: filters, offered tools, and counts of skipped items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pydantic import JsonValue

from agentrl.data.dialogues import read_dialogue
from agentrl.data.fields import FieldError
from agentrl.data.rows.base import Row
from agentrl.errors import DataError
from agentrl.store.stored import StoredRollout
from agentrl.store.text import read_json
from agentrl.types.task import Task

Groups: TypeAlias = Iterable[Sequence[StoredRollout]]

COLUMNS = (
    *("messages", "ground_truth", "data_source", "index", "agent_name", "tools_kwargs", "interaction_kwargs"),
    *("extra_info", "infra_failed", "rewards", "trajectories.messages"),
)
"""Columns of a store that every export reads."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter of the rollouts to export.

    Attributes:
        min_reward: the minimum reward.
        tools: schemas of the run's tools, from the provenance in the file's metadata.
        skipped: reason for skipping -> count. `skipped` and `examples` are filled while rows are created.
        examples: reason for skipping -> one example; not all reasons have an example.
    """

    min_reward: float | None = None
    tools: Sequence[JsonValue] = ()
    skipped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def rollouts(self, group: Sequence[StoredRollout]) -> Iterator[StoredRollout]:
        """Yield the rollouts of `group` that pass the filter; failed rollouts never pass."""
        for stored in group:
            if stored.rollout.failed:
                self.skipped["failed rollouts"] += 1
            elif self.min_reward is not None and not stored.rollout.reward >= self.min_reward:
                self.skipped[f"rollouts with a reward below {self.min_reward:g}"] += 1
            else:
                yield stored

    def is_trainable(self, stored: StoredRollout, row: Row) -> bool:
        """Whether `messages` and `tools` of `row` are a trainable dialogue; if not, count the row in `skipped`."""
        try:
            read_dialogue(row)
        except FieldError as error:
            reason = "conversations that cannot be trained on"
            self.skipped[reason] += 1
            self.examples.setdefault(reason, f"rollout {stored.number} of '{stored.task.uid}', {error}")
            return False
        return True

    def offered(self, task: Task) -> list[JsonValue]:
        """Return the schemas of the tools offered to `task`.

        If the task was imported with its own tools, return the schemas of these tools; else return the schemas of the
        run's tools that the task may use.
        """
        own = task.extra_info.get("tools")
        if isinstance(own, list):
            return own
        selected = task.tool_options.available_tools
        return [tool for tool in self.tools if selected is None or _name(tool) in selected]


Rows: TypeAlias = Callable[[Groups, Selection], Iterator[Mapping[str, object]]]
"""An export format: a function that yields the rows of a file."""


def saved_tools(text: str | None) -> list[JsonValue]:
    """Parse the tool schemas, saved as JSON in the provenance.

    Raises:
        DataError: the text is not a JSON list.
    """
    try:
        tools = read_json(text or "[]")
    except ValueError as error:
        raise DataError(f"the saved tools of the run are not JSON: {error}") from error
    if not isinstance(tools, list):
        raise DataError("the saved tools of the run are not a list")
    return tools


def place(stored: StoredRollout) -> dict[str, object]:
    """Return the columns that identify a rollout's task and step."""
    task = stored.task
    return {"uid": task.uid, "step": stored.step, "data_source": task.data_source, "ground_truth": task.ground_truth}


def _name(tool: JsonValue) -> JsonValue:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
