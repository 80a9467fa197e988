"""Rows held against the model's template and tokenizer, the tools and the reward, as a run would hold them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from agentrl.attempt import Rollout, Stop
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.reward import NO_REWARD
from agentrl.data.custom import load_custom_rows
from agentrl.data.dialogues import Dialogue
from agentrl.data.duplicates import duplicates
from agentrl.data.inspection import Finding, Inspection, Item, digest, inspect
from agentrl.data.pairs import Pair
from agentrl.data.rows import Rows, open_rows
from agentrl.data.threads import on_threads
from agentrl.errors import DataError, RewardError, TemplateError
from agentrl.interactions.loading import load_interactions
from agentrl.models.loading import load_tokenizer
from agentrl.rewards.base import Reward, close_reward
from agentrl.rewards.builtin import NEEDS_SANDBOX
from agentrl.rewards.kinds import reward_models
from agentrl.rewards.loading import check_data_source, load_reward
from agentrl.rewards.sources import reward_of
from agentrl.rewards.view import solution_view
from agentrl.rollouts.row_check import RowCheck
from agentrl.task import Task
from agentrl.tools.base import InfraError
from agentrl.tools.toolbox import Toolbox, load_toolbox
from agentrl.trainer.rollout_parts import load_chat

MOST_PROBED = 5_000
"""Different ground truths that the reward is shown; those of most rows come first."""
_AT_ONCE = 32


@dataclass(slots=True)
class Checked:
    """One dataset, looked at.

    Attributes:
        found: its rows.
        problems: what a run would stumble over, or learn wrongly from.
        notes: what is worth knowing.
        lengths: tokens of each prompt (of a whole conversation, of the longer one of a pair) that could be measured.
        limit: tokens that it may have.
        num_probed: rows whose ground truth the reward was shown; None where it was not asked.
    """

    found: Inspection
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    lengths: list[int] | None = None
    limit: int = 0
    num_probed: int | None = None


Probe = Callable[[Sequence[str], int], Awaitable[Checked]]


@asynccontextmanager
async def open_probe(config: RunConfig, *, with_model: bool) -> AsyncIterator[Probe]:
    """Looks at files, and the first so many of their rows; with a model, at their lengths too.

    Raises:
        AgentRLError: model, tools or reward cannot be used as configured.
    """
    async with AsyncExitStack() as stack:
        lengths: _Lengths | None = None
        if with_model:
            toolbox = load_toolbox(config.rollout.multi_turn)
            stack.push_async_callback(toolbox.close)
            lengths = _Lengths(config, load_chat(config), toolbox)
        reward: Reward | None = None
        if config.reward.name != NO_REWARD and not _is_remote(config):
            reward = load_reward(config.reward, config.data.max_response_length)
            stack.callback(close_reward, reward)
        yield partial(_probe, config, lengths, reward)


def _is_remote(config: RunConfig) -> bool:
    """Whether asking the reward asks a model, or a server that runs code."""
    asked = {each.reward for each in config.reward.components.values()} or {config.reward.name}
    return config.reward.custom_reward_function.path is None and bool(asked & {*reward_models.names(), NEEDS_SANDBOX})


async def _probe(
    config: RunConfig, lengths: _Lengths | None, reward: Reward | None, files: Sequence[str], max_samples: int
) -> Checked:
    found = inspect(_parts(config, files, max_samples), config.data, max_samples)
    exact, contrary, near = duplicates(found)
    checked = Checked(found, [found.unreadable, exact, contrary], [near])
    if lengths:
        _measure(lengths, checked, config)
    if found.kind == "tasks":
        await _ask(config, reward, checked)
    checked.problems = [each for each in checked.problems if each.count]
    checked.notes = [each for each in checked.notes if each.count]
    return checked


def _parts(config: RunConfig, files: Sequence[str], max_samples: int) -> list[Rows]:
    if config.data.custom_cls.path is None:
        return [open_rows(name) for name in files]
    return [load_custom_rows(files, config.data, max_samples, partial(load_tokenizer, config.model))]


class _Lengths:
    """Tokens of an item, as a run would put it to the model."""

    def __init__(self, config: RunConfig, chat: ChatFormat, toolbox: Toolbox) -> None:
        path = config.rollout.multi_turn.interaction_config_path
        self._chat, self._toolbox = chat, toolbox
        self._rows = RowCheck(chat, toolbox, config, load_interactions(path) if path else None)

    def __call__(self, item: Item) -> int:
        if isinstance(item, Task):
            return self._rows.prompt_length(item)
        if isinstance(item, Pair):
            return max(map(self._of_dialogue, (item.chosen, item.rejected)))
        return self._of_dialogue(item)

    def _of_dialogue(self, dialogue: Dialogue) -> int:
        schemas = self._toolbox.schemas if dialogue.tools is None else dialogue.tools
        return len(self._chat.dialogue(dialogue.messages, schemas).token_ids)


def _measure(lengths: _Lengths, checked: Checked, config: RunConfig) -> None:
    """Lengths; rows that ask for what is not there, or are too long."""
    data, table = config.data, checked.found.table

    def length_of(row: int) -> int | str:
        try:
            return lengths(table[row])
        except (DataError, TemplateError) as error:
            return str(error)

    whole = checked.found.kind != "tasks"
    checked.limit = data.max_prompt_length + (data.max_response_length if whole else 0)
    unfit = Finding("rows that the template or the tools refuse")
    long = Finding(f"rows longer than {checked.limit:,} tokens")
    checked.lengths = []
    for row, length in enumerate(on_threads(length_of, len(table), data.filter_overlong_prompts_workers)):
        if isinstance(length, str):
            unfit.add(table.where(row), length)
            continue
        checked.lengths.append(length)
        if length > checked.limit:
            long.add(table.where(row), f"{length} tokens")
    handled = not whole and (data.filter_overlong_prompts or data.truncation != "error")
    checked.problems.append(unfit)
    (checked.notes if handled else checked.problems).append(long)


async def _ask(config: RunConfig, reward: Reward | None, checked: Checked) -> None:
    """Rows that no reward belongs to, or whose ground truth the reward refuses when it is shown an empty answer."""
    unrouted, refused = Finding("rows that no reward scores"), Finding("rows whose ground truth the reward refuses")
    checked.problems += [unrouted, refused]
    table, by_truth = checked.found.table, defaultdict[bytes, list[int]](list)
    for row in range(len(table)):
        task = _task(checked.found, row)
        try:
            check_data_source(config.reward, task)
        except DataError as error:
            unrouted.add(table.where(row), str(error))
            continue
        if config.reward.name != "auto" or reward_of(task.data_source) != NEEDS_SANDBOX:
            by_truth[digest(repr((task.data_source, task.ground_truth)))].append(row)
        elif task.ground_truth is None:
            refused.add(table.where(row), "the row has no ground truth")
    if reward is not None:
        shown = sorted(by_truth.values(), key=len, reverse=True)[:MOST_PROBED]  # such as the lack of one
        checked.num_probed = sum(map(len, shown))
        for some in (shown[start : start + _AT_ONCE] for start in range(0, len(shown), _AT_ONCE)):
            refusals = await asyncio.gather(*(_refusal(reward, _task(checked.found, rows[0])) for rows in some))
            for row, why in ((row, why) for rows, why in zip(some, refusals, strict=True) if why for row in rows):
                refused.add(table.where(row), why)


async def _refusal(reward: Reward, task: Task) -> str:
    """Why the reward cannot score the task, if it cannot, asked of an empty answer."""
    said = solution_view(Rollout([], Stop.FINISHED), lambda ids: "")[1]
    extra = {"index": task.index, "prompt": list(task.messages), **task.extra_info, **said}
    try:
        await reward(task.data_source, "", task.ground_truth, extra)
    except InfraError:
        return ""  # says nothing about the row
    except (RewardError, DataError) as error:
        return str(error)
    return ""


def _task(found: Inspection, row: int) -> Task:
    task = found.table[row]
    assert isinstance(task, Task)  # of an inspection of tasks
    return task
