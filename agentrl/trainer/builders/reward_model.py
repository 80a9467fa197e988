"""Builds the training of a reward model from the configuration: rows, model and validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from agentrl.algos.base import Algorithm
from agentrl.backends.base import Backend, ModelRequest, load_backend
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.data import DataConfig
from agentrl.config.reward_model import RewardTrainingConfig
from agentrl.data.dialogues import Dialogue
from agentrl.data.labelled import load_labelled
from agentrl.data.order import Draw, Order, task_order
from agentrl.data.pairs import load_pairs
from agentrl.errors import ConfigError, Kind, suggestion
from agentrl.tools.agent_tool import agent_tools
from agentrl.tools.toolbox import load_toolbox
from agentrl.trainer.builders.rollouts import load_chat, print_few_rows
from agentrl.trainer.builders.sources import rendered, steps_of_rows
from agentrl.trainer.learner import updates_per_step
from agentrl.trainer.models.reward_model_metrics import Figures, RewardModelCheck, of_labels, of_numbers, of_pairs
from agentrl.trainer.protocols import Source
from agentrl.trainer.sources.labelled import LabelledSource
from agentrl.trainer.sources.live import RowSource
from agentrl.trainer.sources.pairs import PairSource
from agentrl.types.messages import ToolSchema
from agentrl.types.rollout import Group
from agentrl.types.trajectory import Trajectory


class _Table(Protocol):
    @property
    def file_sizes(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def where(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class RewardRows:
    """Rows rendered with the model's chat template: pairs or labelled conversations, depending on `algorithm.name`."""

    config: RunConfig
    chat: ChatFormat
    schemas: Sequence[ToolSchema]

    def training(self) -> tuple[Source, int]:
        """Return the source of `data.train_files` and the number of steps of the run.

        Raises:
            DataError: a file or a row cannot be used.
        """
        data = self.config.data
        seed = self.config.trainer.seed if data.seed is None else data.seed
        table, source = self._open(data.train_files, data.train_max_samples)
        print_few_rows(len(table), self.config)
        order = task_order(table.file_sizes, data.dataset_weights, seed, data.shuffle)
        return source(order, data.train_batch_size), steps_of_rows(self.config, len(table))

    def held_out(self) -> Callable[[], list[Group]]:
        """Check the rows of `data.val_files`; return a function that reads their groups.

        Raises:
            DataError: a file or a row cannot be used.
        """
        table, source = self._open(self.config.data.val_files, self.config.data.val_max_samples)
        rows = source(task_order([len(table)], (), 0, False), len(table))
        return lambda: [rows.group_of(Draw(0, row)) for row in range(len(table))]

    def _open(self, files: Sequence[str], max_samples: int) -> tuple[_Table, Callable[[Order, int], RowSource]]:
        if self.config.algorithm.preset.feed == "pairs":
            return self._open_pairs(files, max_samples)
        return self._open_labelled(files, max_samples)

    def _open_pairs(self, files: Sequence[str], max_samples: int) -> tuple[_Table, Callable[[Order, int], RowSource]]:
        pairs = load_pairs(files, self.config.data, max_samples=max_samples)
        render = self._render(pairs)
        return pairs, lambda order, size: PairSource(pairs.__getitem__, render, order, size)

    def _open_labelled(
        self, files: Sequence[str], max_samples: int
    ) -> tuple[_Table, Callable[[Order, int], RowSource]]:
        asked, of_turns = self.config.algorithm.reward_training, self.config.algorithm.name == "reward_steps"
        key = asked.labels_key if of_turns else asked.label_key
        rows = load_labelled(files, self.config.data, label_key=key, of_turns=of_turns, max_samples=max_samples)
        render, step = self._render(rows), asked.step or "label"
        return rows, lambda order, size: LabelledSource(rows.__getitem__, render, order, size, asked.outcome, step)

    def _render(self, table: _Table) -> Callable[[Dialogue, int], Trajectory]:
        data: DataConfig = self.config.data
        return lambda dialogue, row: rendered(dialogue, table.where(row), self.chat, self.schemas, data)


async def open_reward_rows(config: RunConfig, stack: AsyncExitStack) -> RewardRows:
    """Open the rows of a reward-model training run, with the chat template of `model.path`.

    Raises:
        ConfigError: tokenizer, template or tools cannot be used.
    """
    toolbox = load_toolbox(config.rollout.multi_turn, extra_tools=agent_tools(config.rollout))
    stack.push_async_callback(toolbox.close)
    return RewardRows(config, load_chat(config), toolbox.schemas)


def load_trained_model(config: RunConfig, total_steps: int) -> Backend:
    """Load the reward model to train from `model.path`. A language model gets a new scalar head.

    Raises:
        ConfigError: the model cannot be used.
    """
    updates = updates_per_step(config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.actor.ppo_epochs)
    request = ModelRequest(config.model, config.actor, total_updates=max(1, total_steps) * updates, value_head=True)
    return load_backend(config, request)


def open_check(config: RunConfig, rows: RewardRows, algorithm: Algorithm, model: Backend) -> RewardModelCheck | None:
    """Open the validation of the model on `data.val_files`; return None if there are no validation files.

    Raises:
        ConfigError: a key names a metric that this validation does not have.
        DataError: a file or a row cannot be used.
    """
    if not config.data.val_files:
        return None
    figures, names = _figures(config.algorithm.preset.feed == "pairs", config.algorithm.reward_training)
    trainer = config.trainer
    wanted = {
        "trainer.stop_when.metric": trainer.stop_when and trainer.stop_when.metric,
        "trainer.save_best": trainer.save_best,
    }
    for key, name in wanted.items():
        if name and name not in names:
            raise ConfigError.at(
                key, Kind.NOT_FOUND, f"`{key}`: the validation has no '{name}': {suggestion(name, names)}"
            )
    return RewardModelCheck(rows.held_out(), algorithm, model.score, figures)


def _figures(pairs: bool, asked: RewardTrainingConfig) -> tuple[Figures, list[str]]:
    """Return the function that computes metrics of held-out rows, and the names of these metrics."""
    if pairs:
        return of_pairs, [f"val/{name}" for name in ("accuracy", "margin", "ece", "brier", "num_pairs")]
    if asked.loss == "mse":
        return of_numbers, ["val/mse", "val/rank_correlation"]
    return of_labels, [f"val/{name}" for name in ("accuracy", "ece", "brier", "auc")]
