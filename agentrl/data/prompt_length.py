"""Handling of prompts that are too long: raise an error, filter them, or truncate the last user message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl.config.data import DataConfig
from agentrl.data.fields import FieldError
from agentrl.data.tasks import TaskTable
from agentrl.data.threads import on_threads
from agentrl.errors import DataError
from agentrl.types.messages import Message
from agentrl.types.task import Task

Side = Literal["left", "middle", "right"]


@dataclass(frozen=True, slots=True)
class Measure:
    """How prompt lengths are measured, and where text may be cut.

    Attributes:
        length_of: returns the number of prompt tokens at the start of a rollout; raises DataError for an invalid row.
        pieces_of: splits a text into pieces of about one token.
        control_tokens: texts that are always one token.
    """

    length_of: Callable[[Task], int]
    pieces_of: Callable[[str], Sequence[str]]
    control_tokens: Collection[str] = ()


def fit_prompts(tasks: TaskTable, measure: Measure, config: DataConfig) -> tuple[TaskTable, str]:
    """Return (tasks with prompts of at most `max_prompt_length` tokens, message about longer prompts).

    A longer prompt is filtered (`filter_overlong_prompts`), raises an error (`truncation: error`), or its last user
    message is cut.

    Raises:
        DataError: a row is invalid, a prompt is too long, or no row is left. The message names file and row.
    """
    limit = config.max_prompt_length
    lengths = prompt_lengths(tasks, measure.length_of, config.filter_overlong_prompts_workers)
    long = [index for index, length in enumerate(lengths) if length > limit]
    if not long:
        return tasks, ""
    notice = f"{len(long)} of {len(lengths)} prompts are longer than {limit} tokens: "
    if config.filter_overlong_prompts and len(long) < len(lengths):
        dropped = set(long)
        return tasks.keep([index for index in range(len(lengths)) if index not in dropped]), f"{notice}dropped"
    if config.filter_overlong_prompts or config.truncation == "error":
        raise DataError(
            f"{tasks.where(long[0])}: its prompt has {lengths[long[0]]} tokens, data.max_prompt_length is {limit} "
            f"({len(long)} of {len(lengths)} rows are longer, up to {max(lengths)} tokens): "
            + ("no row is left" if config.filter_overlong_prompts else _WAYS_OUT)
        )
    cut = {index: _cut(tasks, index, measure, limit, config.truncation) for index in long}
    return tasks.replace(cut), f"{notice}the last user text is cut ({config.truncation})"


_WAYS_OUT = (
    "raise data.max_prompt_length, or set data.filter_overlong_prompts, or set data.truncation to left, middle or right"
)


def prompt_lengths(tasks: TaskTable, length_of: Callable[[Task], int], num_threads: int | None = None) -> list[int]:
    """Return the number of tokens of every prompt, in the order of the rows.

    Args:
        num_threads: number of threads; None: one per core.

    Raises:
        DataError: a row is invalid; the message names file and row of the first one.
    """
    return on_threads(partial(_length, tasks, length_of), len(tasks), num_threads)


def _length(tasks: TaskTable, length_of: Callable[[Task], int], index: int) -> int:
    try:
        return length_of(tasks[index])
    except DataError as error:
        raise DataError(f"{tasks.where(index)}: {error}") from error


def _cut(tasks: TaskTable, index: int, measure: Measure, limit: int, side: Side) -> Task:
    try:
        return cut_prompt(tasks[index], measure, limit, side)
    except (FieldError, DataError) as error:
        raise DataError(f"{tasks.where(index)}: {error}") from error


def fit_prompt(task: Task, measure: Measure, config: DataConfig) -> Task:
    """Return the task, with its last user message cut if the prompt is too long and the configuration allows cutting.

    Raises:
        FieldError: the prompt is too long and cannot be cut.
        DataError: the task is invalid.
    """
    if (length := measure.length_of(task)) <= config.max_prompt_length:
        return task
    if config.filter_overlong_prompts or config.truncation == "error":
        raise FieldError(f"its prompt has {length} tokens, data.max_prompt_length is {config.max_prompt_length}")
    return cut_prompt(task, measure, config.max_prompt_length, config.truncation)


def cut_prompt(task: Task, measure: Measure, limit: int, side: Side) -> Task:
    """Cut the last user message of `task` on `side`, so that its prompt has at most `limit` tokens.

    The rest of the prompt is unchanged: tools, system message, earlier turns, tokens of the chat template.

    Raises:
        FieldError: there is no user text, or the prompt is too long even without this text.
    """
    users = [index for index, message in enumerate(task.messages) if message["role"] == "user"]
    text = task.messages[users[-1]].get("content") if users else None
    length = measure.length_of(task)
    if not isinstance(text, str):
        raise FieldError(
            f"its prompt has {length} tokens, data.max_prompt_length is {limit}, and there is no user text to cut"
        )
    pieces = measure.pieces_of(text)
    num_kept = len(pieces)
    while length > limit and num_kept:
        num_kept = max(0, num_kept - (length - limit))  # cut text may tokenize differently: measure again
        kept = _kept(pieces, num_kept, side, measure.control_tokens)
        task = replace(task, messages=_with_text(task.messages, users[-1], kept))
        length = measure.length_of(task)
    if length > limit:
        raise FieldError(
            f"its prompt has {length} tokens even without the text of its last user message, "
            f"data.max_prompt_length is {limit}"
        )
    return task


def _with_text(messages: Sequence[Message], place: int, text: str) -> list[Message]:
    changed = messages[place].copy()
    changed["content"] = text
    return [*messages[:place], changed, *messages[place + 1 :]]


def _kept(pieces: Sequence[str], num_kept: int, side: Side, control_tokens: Iterable[str]) -> str:
    """Cut a text on `side` to `num_kept` pieces, or to fewer if joining head and tail would create a control token."""
    num_tail = {"left": num_kept, "middle": num_kept // 2, "right": 0}[side]
    tail = "".join(pieces[len(pieces) - num_tail :])
    for num_head in range(num_kept - num_tail, -1, -1):
        head = "".join(pieces[:num_head])
        if not any((head + tail).count(token) > head.count(token) + tail.count(token) for token in control_tokens):
            break
    return head + tail
