"""Tasks from rows: verl's columns, or the plain `prompt`, `ground_truth`, `data_source`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

from pydantic import JsonValue

from agentrl.config.data import DataConfig
from agentrl.data.fields import FieldError, optional_object, optional_text, read_messages, required, with_system, wrong
from agentrl.data.rows import Row, Rows
from agentrl.data.table import Table, load_table
from agentrl.errors import DataError
from agentrl.messages import Message
from agentrl.task import Task

TaskTable: TypeAlias = Table[Task]

_MEDIA = ("images", "videos")
_NAMED = {"data_source", "agent_name", "ground_truth", "reward_model", "tools_kwargs", "interaction_kwargs", *_MEDIA}


def load_tasks(files: Sequence[str], config: DataConfig, *, max_samples: int = -1) -> TaskTable:
    """The tasks of `files` (Parquet, JSON, JSONL, or names of the `datasets` library), built when asked for.

    A row has the prompt in column `config.prompt_key` (text or chat messages), and may have `data_source`,
    `agent_name`, a ground truth (`reward_model.ground_truth`, `ground_truth` or `answer`), and `extra_info` with
    `tools_kwargs` and `interaction_kwargs`. Any other column is added to `extra_info`. Rows are counted from 0.

    Raises:
        DataError: a file or a row cannot be used; names file, row and field. Every row is checked here.
    """
    return load_table(files, partial(_read_task, config), max_samples)


def check_lengths(tasks: TaskTable, length_of: Callable[[Task], int], limit: int, drop: bool) -> tuple[TaskTable, int]:
    """The tasks whose prompt has at most `limit` tokens, and how many were dropped.

    Args:
        length_of: tokens of a task's rendered prompt.

    Raises:
        DataError: some are longer and `drop` is off, or none are left.
    """
    lengths = [length_of(task) for task in tasks]
    kept = [index for index, length in enumerate(lengths) if length <= limit]
    num_dropped = len(lengths) - len(kept)
    if num_dropped and not (drop and kept):
        first = next(index for index, length in enumerate(lengths) if length > limit)
        raise DataError(
            f"{tasks.where(first)}: its prompt has {lengths[first]} tokens, data.max_prompt_length is {limit} "
            f"({num_dropped} of {len(lengths)} rows are longer, up to {max(lengths)} tokens): "
            + ("nothing is left" if drop else "raise it, or set data.filter_overlong_prompts")
        )
    return (tasks.keep(kept) if num_dropped else tasks), num_dropped


def _read_task(config: DataConfig, row: Row, position: int, rows: Rows) -> Task:
    for key in _MEDIA:
        if row.get(key):
            raise FieldError(f"field '{key}': tasks with images or videos cannot be trained on")
    extra_info = {
        **{key: value for key, value in row.items() if key not in _NAMED | {config.prompt_key, "extra_info"}},
        **optional_object(row, "extra_info"),
    }
    return Task(
        messages=_prompt(row, config),
        ground_truth=_ground_truth(row),
        data_source=optional_text(row, "data_source") or rows.source or "unknown",
        index=position,
        agent_name=optional_text(row, "agent_name"),
        tools_kwargs=_tools_kwargs(row, extra_info),
        interaction_kwargs=_own_or_extra(row, extra_info, "interaction_kwargs"),
        extra_info=extra_info,
    )


def _prompt(row: Row, config: DataConfig) -> list[Message]:
    prompt = required(row, config.prompt_key, "text or a list of messages (data.prompt_key)")
    if isinstance(prompt, str):
        messages = [Message(role="user", content=prompt)]
    elif isinstance(prompt, list):
        messages = read_messages(prompt, config.prompt_key)
    else:
        raise wrong(config.prompt_key, "text or a list of messages", prompt)
    return with_system(messages, config.system_prompt)


def _ground_truth(row: Row) -> JsonValue:
    """verl's place first; a dataset that names it `answer` need not be rewritten."""
    reward_model = optional_object(row, "reward_model")
    for holder, key in ((reward_model, "ground_truth"), (row, "ground_truth"), (row, "answer")):
        if holder.get(key) is not None:
            return holder[key]
    return None


def _tools_kwargs(row: Row, extra_info: Row) -> Mapping[str, Mapping[str, JsonValue]]:
    tools = _own_or_extra(row, extra_info, "tools_kwargs")
    for name, kwargs in tools.items():
        if not isinstance(kwargs, dict):
            raise wrong(f"tools_kwargs.{name}", "an object such as {create_kwargs: {...}}", kwargs)
    return cast(Mapping[str, Mapping[str, JsonValue]], tools)


def _own_or_extra(row: Row, extra_info: Row, key: str) -> Mapping[str, JsonValue]:
    return optional_object(row, key) or optional_object(extra_info, key, within="extra_info.")
