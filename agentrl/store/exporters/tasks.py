"""Export of the tasks of rollouts, in the format of verl's datasets, which agentrl also reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from agentrl.store.exporters.selection import Groups, Selection
from agentrl.store.text import write_json
from agentrl.types.task import Task


def task_rows(groups: Groups, selection: Selection) -> Iterator[Mapping[str, JsonValue]]:
    """Yield one row per task that has a selected rollout. `data_source` and `index` identify a task.

    A ground truth that is not text is written as JSON, because a Parquet column has one type. Empty objects are removed
    from `extra_info`, because Parquet cannot store them.
    """
    seen: set[tuple[str, int]] = set()
    for group in groups:
        for stored in selection.rollouts(group):
            key = (stored.task.data_source, stored.task.index)
            if key not in seen:
                seen.add(key)
                yield _row(stored.task, stored.split)


def _row(task: Task, split: str) -> dict[str, JsonValue]:
    truth = task.ground_truth
    tools = _filled({name: dict(kwargs) for name, kwargs in task.tools_kwargs.items()})
    extra: dict[str, JsonValue] = {
        # without "logged", which describes rollouts, not the task
        **{key: value for key, value in task.extra_info.items() if key != "logged"},
        **({"need_tools_kwargs": True, "tools_kwargs": tools} if tools else {}),
        "interaction_kwargs": dict(task.interaction_kwargs),
        "index": task.index,
        "split": split,
    }
    ability = task.extra_info.get("ability")
    return {
        "data_source": task.data_source,
        "prompt": [dict(message) for message in task.messages],  # type: ignore[arg-type]  # messages are JSON
        "ability": ability if isinstance(ability, str) else task.data_source,
        "reward_model": {"style": "rule", "ground_truth": truth if isinstance(truth, str) else write_json(truth)},
        **({"agent_name": task.agent_name} if task.agent_name else {}),
        "extra_info": _filled(extra),
    }


def _filled(value: JsonValue) -> JsonValue:
    """Remove empty objects and null entries."""
    if isinstance(value, list):
        return [_filled(item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {key: _filled(item) for key, item in value.items()}
    return {key: item for key, item in filled.items() if item is not None and item != {}}
