"""Checks rows with the reward: finds rows without a matching reward, and ground truths that the reward refuses."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD
from agentrl.data.inspection import Finding, Inspection, digest
from agentrl.errors import DataError, RewardError
from agentrl.rewards.base import Reward, reward_models
from agentrl.rewards.builtin.code_cases import read_cases
from agentrl.rewards.builtin.data_sources import reward_of
from agentrl.rewards.builtin.registry import NEEDS_SANDBOX
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rewards.reward_view import solution_view
from agentrl.tools.base import InfraError
from agentrl.types.rollout import Rollout, Stop
from agentrl.types.task import Task

MAX_PROBED = 5_000
"""Maximum number of different ground truths to check; the most frequent come first."""
_MAX_CONCURRENT = 32


def callable_reward(config: RunConfig) -> Reward | None:
    """Load the configured reward; None if no reward is configured, or if it calls a model or a code-execution server.

    Raises:
        AgentRLError: the reward cannot be used as configured.
    """
    names = {each.reward for each in config.reward.components.values()} or {config.reward.name}
    remote = config.reward.custom_reward_function.path is None and names & {*reward_models.names(), NEEDS_SANDBOX}
    if config.reward.name == NO_REWARD or remote:
        return None
    return load_reward(config.reward, config.data.max_response_length)


async def probe_reward(config: RunConfig, reward: Reward | None, found: Inspection) -> tuple[list[Finding], int | None]:
    """Find problems of tasks: call the reward with an empty answer and at most `MAX_PROBED` different ground truths.

    Returns:
        The findings, and the number of rows whose ground truth was checked (None if the reward was not called).
    """
    unrouted, refused = (
        Finding("rows without a reward for their data_source"),
        Finding("rows whose ground truth the reward cannot use"),
    )
    by_truth = defaultdict[bytes, list[int]](list)
    for row in range(len(found.table)):
        task = _task(found, row)
        try:
            check_data_source(config.reward, task)
        except DataError as error:
            unrouted.add(found.table.where(row), str(error))
            continue
        if not _is_code(config, task):
            by_truth[digest(repr((task.data_source, task.ground_truth)))].append(row)
        elif why := _no_tests(task):
            refused.add(found.table.where(row), why)
    if reward is None:
        return [unrouted, refused], None
    # the most frequent first, because a missing ground truth is often frequent
    shown = sorted(by_truth.values(), key=len, reverse=True)[:MAX_PROBED]
    await _probe(reward, found, shown, refused)
    return [unrouted, refused], sum(map(len, shown))


async def _probe(reward: Reward, found: Inspection, shown: Sequence[Sequence[int]], refused: Finding) -> None:
    for batch in (shown[start : start + _MAX_CONCURRENT] for start in range(0, len(shown), _MAX_CONCURRENT)):
        refusals = await asyncio.gather(*(_refusal(reward, _task(found, rows[0])) for rows in batch))
        for rows, why in ((rows, why) for rows, why in zip(batch, refusals, strict=True) if why):
            for row in rows:  # in the message, replace the index of the checked row by the index of this row
                own = why.replace(f"row {_task(found, rows[0]).index}", f"row {_task(found, row).index}", 1)
                refused.add(found.table.where(row), own)


async def _refusal(reward: Reward, task: Task) -> str:
    """Return why the reward cannot score an empty answer to the task; "" if scoring works."""
    view = solution_view(Rollout([], Stop.FINISHED), lambda ids: "")[1]
    extra = {"index": task.index, "prompt": list(task.messages), **task.extra_info, **view}
    try:
        await reward(task.data_source, "", task.ground_truth, extra)
    except InfraError:
        return ""  # the row did not cause the error
    except (RewardError, DataError) as error:
        return str(error)
    return ""


def _is_code(config: RunConfig, task: Task) -> bool:
    """Whether scoring the task runs programs. If so, the reward is not called; only the task's tests are parsed."""
    name = reward_of(task.data_source) if config.reward.name == "auto" else config.reward.name
    own = config.reward.custom_reward_function.path is not None or config.reward.components
    return name == NEEDS_SANDBOX and not own


def _no_tests(task: Task) -> str:
    try:
        read_cases(task.ground_truth)
    except RewardError as error:
        return str(error)
    return ""


def _task(found: Inspection, row: int) -> Task:
    task = found.table[row]
    assert isinstance(task, Task)  # the dataset holds tasks
    return task
