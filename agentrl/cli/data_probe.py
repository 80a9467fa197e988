"""Files looked at: their rows held against the model's template and tokenizer, the tools and the reward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from agentrl.chat.format import ChatFormat
from agentrl.cli.data_reward import ask, askable_reward
from agentrl.config import RunConfig
from agentrl.data.custom import load_custom_rows
from agentrl.data.dialogues import Dialogue
from agentrl.data.duplicates import duplicates
from agentrl.data.inspection import Finding, Inspection, Item, inspect
from agentrl.data.pairs import Pair
from agentrl.data.rows import Rows, open_rows
from agentrl.data.threads import on_threads
from agentrl.errors import ConfigError, DataError, TemplateError
from agentrl.interactions.loading import load_interactions
from agentrl.models.loading import load_tokenizer
from agentrl.rewards.base import Reward, close_reward
from agentrl.rollouts.row_check import RowCheck
from agentrl.task import Task
from agentrl.tools.toolbox import Toolbox, load_toolbox
from agentrl.trainer.rollout_parts import load_chat


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
        if (reward := askable_reward(config)) is not None:
            stack.callback(close_reward, reward)
        yield partial(_probe, config, lengths, reward)


async def _probe(
    config: RunConfig, lengths: _Lengths | None, reward: Reward | None, files: Sequence[str], max_samples: int
) -> Checked:
    found = inspect(_parts(config, files, max_samples, lengths is not None), config.data, max_samples)
    exact, contrary, near = duplicates(found)
    checked = Checked(found, [found.unreadable, exact, contrary], [near])
    if lengths:
        _measure(lengths, checked, config)
    if found.kind == "tasks":
        problems, checked.num_probed = await ask(config, reward, found)
        checked.problems += problems
    checked.problems = [each for each in checked.problems if each.count]
    checked.notes = [each for each in checked.notes if each.count]
    return checked


def _parts(config: RunConfig, files: Sequence[str], max_samples: int, with_model: bool) -> list[Rows]:
    def tokenizer() -> object:
        if not with_model:
            raise ConfigError("data.custom_cls: the class asks for a tokenizer: give --model")
        return load_tokenizer(config.model)

    if config.data.custom_cls.path is None:
        parts: list[Rows] = [open_rows(name) for name in files]
    else:
        parts = [load_custom_rows(files, config.data, max_samples, tokenizer)]
    if not any(map(len, parts)):
        raise DataError(f"{', '.join(files)}: no rows to read")
    return parts


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
