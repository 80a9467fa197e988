"""Check dataset rows against the model's chat template and tokenizer, the tools and the reward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from agentrl.chat.format import ChatFormat
from agentrl.cli.data.reward import callable_reward, probe_reward
from agentrl.config import RunConfig
from agentrl.data.dialogues import Dialogue
from agentrl.data.inspection import Finding, Inspection, Item, duplicates, inspect
from agentrl.data.pairs import Pair
from agentrl.data.rows.base import Rows
from agentrl.data.rows.custom import load_custom_rows
from agentrl.data.rows.open import open_rows
from agentrl.data.task_folders.rows import FOLDER_KEY
from agentrl.data.threads import on_threads
from agentrl.errors import ConfigError, DataError, Kind, TemplateError
from agentrl.interactions.base import BaseInteraction
from agentrl.interactions.loading import load_interactions
from agentrl.models.loading import load_tokenizer
from agentrl.rewards.base import Reward, close_reward
from agentrl.rollouts.row_check import RowCheck, RowNames
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.toolbox import Toolbox, load_toolbox
from agentrl.trainer.builders.rollouts import load_chat
from agentrl.types.task import Task


@dataclass(slots=True)
class Checked:
    """Results of checking one dataset.

    Attributes:
        found: the inspected rows.
        problems: problems that would stop a run or make training wrong.
        notes: other findings.
        lengths: number of tokens of each measured row: of the task's prompt, of the conversation, or of the longer
            conversation of a pair.
        limit: maximum number of tokens of a row.
        num_probed: number of rows whose ground truth the reward checked; None if the reward was not called.
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
    """Yield a function that checks the first rows of files. With a model, the function also measures the rows' lengths.

    Raises:
        AgentRLError: model, tools or reward cannot be used as configured.
    """
    path = config.rollout.multi_turn.interaction_config_path
    interactions = load_interactions(path) if path else None
    async with AsyncExitStack() as stack:
        toolbox = load_toolbox(config.rollout.multi_turn, extra_tools=agent_tools(config.rollout))
        stack.push_async_callback(toolbox.close)
        chat = load_chat(config) if with_model else None
        if (reward := callable_reward(config)) is not None:
            stack.callback(close_reward, reward)
        yield partial(_probe, config, partial(_Rows, config, toolbox, interactions, chat), reward)


async def _probe(
    config: RunConfig, open_check: Callable[[], _Rows], reward: Reward | None, files: Sequence[str], max_samples: int
) -> Checked:
    rows = open_check()
    found = inspect(_parts(config, files, max_samples, rows.measures), config.data, max_samples)
    exact, contrary, near = duplicates(found)
    checked = Checked(found, [found.unreadable, exact, contrary], [near])
    _measure(rows, checked, config)
    if found.kind == "tasks":
        checked.problems.append(rows.refused())
        checked.notes += _without_effect(found, config)
        problems, checked.num_probed = await probe_reward(config, reward, found)
        checked.problems += problems
    checked.problems = [each for each in checked.problems if each.count]
    checked.notes = [each for each in checked.notes if each.count]
    return checked


def _parts(config: RunConfig, files: Sequence[str], max_samples: int, with_model: bool) -> list[Rows]:
    def tokenizer() -> object:
        if not with_model:
            raise ConfigError.at(
                "data.custom_cls", Kind.MISSING, "data.custom_cls: the class needs a tokenizer: give --model"
            )
        return load_tokenizer(config.model)

    if config.data.custom_cls.path is None:
        parts: list[Rows] = [open_rows(name) for name in files]
    else:
        parts = [load_custom_rows(files, config.data, max_samples, tokenizer)]
    if not any(map(len, parts)):
        raise DataError(f"{', '.join(files)}: no rows to read")
    return parts


class _Rows:
    """Checks rows against agent loops, tools and simulated users; with a model, also against the chat template.

    Attributes:
        measures: whether there is a model, so that lengths can be measured.
    """

    def __init__(
        self,
        config: RunConfig,
        toolbox: Toolbox,
        interactions: Mapping[str, BaseInteraction] | None,
        chat: ChatFormat | None,
    ) -> None:
        self._chat, self._toolbox = chat, toolbox
        self._measured = RowCheck(chat, toolbox, config, interactions) if chat else None
        self._named = self._measured or RowNames(toolbox, config, interactions)
        self.measures = chat is not None

    def length(self, item: Item) -> int | None:
        """Number of tokens of an item, formatted as in a run; None without a model.

        Raises:
            DataError, TemplateError: a run would refuse the item.
        """
        if isinstance(item, Task):
            if self._measured:
                return self._measured.prompt_length(item)
            self._named.check(item)
            return None
        if isinstance(item, Pair):
            lengths = [self._dialogue_length(each) for each in (item.chosen, item.rejected)]
            return max((each for each in lengths if each is not None), default=None)
        return self._dialogue_length(item)

    def refused(self) -> Finding:
        """Return a finding with the configuration errors that can be found only after all rows were checked."""
        finding = Finding("settings that fail with these rows")
        try:
            self._named.finish()
        except ConfigError as error:
            finding.add("configuration", str(error))
        return finding

    def _dialogue_length(self, dialogue: Dialogue) -> int | None:
        if self._chat is None:
            return None
        schemas = self._toolbox.schemas if dialogue.tools is None else dialogue.tools
        return len(self._chat.with_variables(dialogue.variables).dialogue(dialogue.messages, schemas).token_ids)


def _without_effect(found: Inspection, config: RunConfig) -> Iterator[Finding]:
    """Find rows with options for tools or for a simulated user that the configuration does not have."""
    turns = config.rollout.multi_turn
    tools = Finding("rows with tools_kwargs, but no tools are configured")
    users = Finding("rows with interaction_kwargs, but no simulated user is configured")
    for row, task in enumerate(found.table):
        assert isinstance(task, Task)  # the dataset holds tasks
        if task.tools_kwargs and not (turns.tool_config_path or turns.function_tool_path or turns.environment):
            tools.add(found.table.where(row), f"for {', '.join(task.tools_kwargs)}; see rollout.multi_turn")
        if task.interaction_kwargs and not turns.interaction_config_path:
            users.add(found.table.where(row), "see rollout.multi_turn.interaction_config_path")
    yield from (tools, users)


def _measure(rows: _Rows, checked: Checked, config: RunConfig) -> None:
    """Measure lengths; record rows that are invalid or too long."""
    data, table = config.data, checked.found.table

    def length_of(row: int) -> int | str | None:
        try:
            return rows.length(table[row])
        except (DataError, TemplateError) as error:
            return str(error)

    with_response = checked.found.kind != "tasks"
    checked.limit = data.max_prompt_length + (data.max_response_length if with_response else 0)
    unfit = Finding("rows that fail with the chat template, the tools or the agent loop")
    long = Finding(f"rows longer than {checked.limit:,} tokens")
    checked.lengths = [] if rows.measures else None
    for row, length in enumerate(on_threads(length_of, len(table), data.filter_overlong_prompts_workers)):
        if isinstance(length, str):
            task = table[row]
            unfit.add(table.where(row), length, listed=isinstance(task, Task) and FOLDER_KEY in task.extra_info)
            continue
        if checked.lengths is None or length is None:
            continue
        checked.lengths.append(length)
        if length > checked.limit:
            long.add(table.where(row), f"{length} tokens")
    handled = not with_response and (data.filter_overlong_prompts or data.truncation != "error")
    checked.problems.append(unfit)
    (checked.notes if handled else checked.problems).append(long)
