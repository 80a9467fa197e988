"""Texts that are there already, scored as answers to their rows: no model, no tokens, no tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from agentrl.attempt import Group, Rollout, Stop
from agentrl.config import RunConfig
from agentrl.data.tasks import TaskTable, load_tasks
from agentrl.errors import DataError, suggestion
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.task import Task
from agentrl.tools.base import InfraError

_AT_ONCE = 64
"""Texts that are being scored at a time."""


async def score_responses(file: Path, column: str, config: RunConfig) -> list[Group]:
    """The rows of `file` with a rollout for each text in `column`; it has a score and nothing else.

    The reward is called as in training; of what `extra_info` says of a rollout only `last_turn` and `turn_texts` are
    there, the text as the one turn it is: what tools were called, and which turns were before, it does not say.

    Args:
        column: a text or a list of texts a row.

    Raises:
        DataError: a row that cannot be used, or without such a column; names file and row.
        RewardError: the reward function raised.
    """
    tasks = load_tasks([str(file)], config.data)
    texts = [_texts(tasks, row, column) for row in range(len(tasks))]
    for row in range(len(tasks)):
        _check_source(config, tasks, row)
    reward, slots = load_reward(config.reward, config.data.max_response_length), asyncio.Semaphore(_AT_ONCE)

    async def group(task: Task, answers: Sequence[str]) -> Group:
        extra: dict[str, object] = {
            "index": task.index,
            "prompt": list(task.messages),
            **_without(task.extra_info, column),
        }
        rollouts = []
        for answer in answers:
            async with slots:
                one_turn = {"last_turn": answer, "turn_texts": [answer]}
                rollouts.append(await _scored(reward, task, answer, extra | one_turn))
        return Group(task, rollouts)

    try:
        async with asyncio.TaskGroup() as together:
            running = [together.create_task(group(task, each)) for task, each in zip(tasks, texts, strict=True)]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        close_reward(reward)
    return [done.result() for done in running]


async def _scored(reward: Reward, task: Task, answer: str, extra: Mapping[str, object]) -> Rollout:
    try:
        rewards = await reward(task.data_source, answer, task.ground_truth, extra)
    except InfraError as error:
        return Rollout([], Stop.FINISHED, infra_failed=True, error=f"reward: {error}")
    return Rollout([], Stop.FINISHED, rewards)


def _texts(tasks: TaskTable, row: int, column: str) -> list[str]:
    task = tasks[row]
    if column not in task.extra_info:
        raise DataError(
            f"{tasks.where(row)}: no column '{column}' of texts (--response-key): {suggestion(column, task.extra_info)}"
        )
    value = task.extra_info[column]
    if not isinstance(value, list):
        return [_text(value, f"{tasks.where(row)}: field '{column}'")]
    return [_text(each, f"{tasks.where(row)}: field '{column}', position {at}") for at, each in enumerate(value)]


def _text(value: JsonValue, where: str) -> str:
    if not isinstance(value, str):  # nothing is passed over: pass@k counts how many there are
        raise DataError(f"{where}: expected a text or a list of texts, got {value!r:.100}")
    return value


def _check_source(config: RunConfig, tasks: TaskTable, row: int) -> None:
    try:
        check_data_source(config.reward, tasks[row])
    except DataError as error:
        raise DataError(f"{tasks.where(row)}: {error}") from error


def _without(values: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    return {name: value for name, value in values.items() if name != key}
