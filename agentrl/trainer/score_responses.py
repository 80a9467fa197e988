"""Scores the texts in a data file as answers to the tasks of their rows, without a model, tokens or tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from agentrl.config import RunConfig
from agentrl.data.tasks import TaskTable, load_tasks
from agentrl.errors import DataError, RewardError, suggestion
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rewards.reward_view import parts_of_texts
from agentrl.tools.base import InfraError
from agentrl.types.messages import Message
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task

_AT_ONCE = 64
"""Maximum number of texts scored concurrently."""

_UNKNOWN = ("completion_ids", "response_lengths", "token_ids")
"""Keys of `RolloutInfo` that need tokens. Texts do not have these keys."""


async def score_responses(file: Path, column: str, config: RunConfig) -> list[Group]:
    """Return one group per row of `file`, with one rollout per text in `column`; each rollout has only rewards.

    The reward function is called as in training, as if the text were the only turn of a rollout without tool calls. A
    column of the file, such as `tool_outcomes`, replaces the default value that `extra_info` has under this name. The
    reward function gets no token ids and no lengths in tokens.

    Args:
        column: the column with a text or a list of texts per row.

    Raises:
        DataError: a row is invalid or lacks the column; the message names file and row.
        RewardError: the reward function raised an exception, or needs a key that does not exist for texts. The message
            names the first failing row of the file, or the key.
    """
    tasks = load_tasks([str(file)], config.data)
    texts = [_texts(tasks, row, column) for row in range(len(tasks))]
    for row in range(len(tasks)):
        _check_source(config, tasks, row)
    reward, slots = load_reward(config.reward, config.data.max_response_length), asyncio.Semaphore(_AT_ONCE)

    async def group(task: Task, answers: Sequence[str]) -> Group:
        rollouts = []
        for answer in answers:
            async with slots:
                rollouts.append(await _scored(reward, task, answer, _info(task, answer, column)))
        return Group(task, rollouts)

    running = [asyncio.create_task(group(task, each)) for task, each in zip(tasks, texts, strict=True)]
    try:
        return [await each for each in running]  # in file order, to raise the first failing row's error
    finally:
        await _cancel(running)
        close_reward(reward)


async def _cancel(tasks: Sequence[asyncio.Task[Group]]) -> None:
    """Cancel the tasks that still run, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _scored(reward: Reward, task: Task, answer: str, extra: Mapping[str, object]) -> Rollout:
    try:
        rewards = await reward(task.data_source, answer, task.ground_truth, extra)
    except InfraError as error:
        return Rollout([], Stop.FINISHED, infra_failed=True, error=f"reward: {error}")
    except RewardError as error:
        if key := next((key for key in _UNKNOWN if f"KeyError: '{key}'" in str(error)), None):
            hint = f"only saved rollouts have '{key}': agentrl eval --from RUN"
            raise RewardError(f"{error}: texts have no tokens; {hint}") from error
        raise
    return Rollout([], Stop.FINISHED, rewards)


def _info(task: Task, answer: str, column: str) -> dict[str, object]:
    """Return `extra_info` of a text: default values for keys of `RolloutInfo`, replaced by columns of the same name."""
    assumed: dict[str, object] = {
        "conversation": [*task.messages, Message(role="assistant", content=answer)],
        "num_turns": 1,
        "num_tool_calls": 0,
        "tool_outcomes": [],
        "tool_text": "",
        "tool_rewards": [],
        "rollout_reward_scores": {},
        "turn_scores": [],
        "stop": Stop.FINISHED.value,
    }
    known = {"index": task.index, "prompt": list(task.messages), **_without(task.extra_info, column)}
    apart = parts_of_texts([Message(role="assistant", content=answer)])
    return {**assumed, **known, "last_turn": answer, "turn_texts": [answer], **apart}


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
    if not isinstance(value, str):  # not skipped, because pass@k needs every text
        raise DataError(f"{where}: expected a text or a list of texts, got {value!r:.100}")
    return value


def _check_source(config: RunConfig, tasks: TaskTable, row: int) -> None:
    try:
        check_data_source(config.reward, tasks[row])
    except DataError as error:
        raise DataError(f"{tasks.where(row)}: {error}") from error


def _without(values: Mapping[str, JsonValue], key: str) -> dict[str, JsonValue]:
    return {name: value for name, value in values.items() if name != key}
