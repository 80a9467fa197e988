"""From the configuration to the training of a reward model: its rows, the model, what checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from agentrl.algos.base import Algorithm
from agentrl.attempt import Group
from agentrl.backends.base import Backend
from agentrl.backends.torch.backend import TorchBackend, load_scalar_backend
from agentrl.chat.format import ChatFormat
from agentrl.config import RunConfig
from agentrl.config.data import DataConfig
from agentrl.config.learned_rewards import RewardTrainingConfig
from agentrl.data.dialogues import Dialogue
from agentrl.data.labelled import load_labelled
from agentrl.data.order import Draw, Order, task_order
from agentrl.data.pairs import load_pairs
from agentrl.errors import ConfigError, suggestion
from agentrl.messages import ToolSchema
from agentrl.tools.toolbox import load_toolbox
from agentrl.trainer.labelled_source import LabelledSource
from agentrl.trainer.learner import updates_per_step
from agentrl.trainer.pair_source import PairSource
from agentrl.trainer.parts import Source
from agentrl.trainer.reward_model_check import Figures, RewardModelCheck, of_labels, of_numbers, of_pairs
from agentrl.trainer.rollout_parts import load_chat, tell_few_rows
from agentrl.trainer.saved_parts import rendered
from agentrl.trainer.source import RowSource
from agentrl.trainer.source_parts import steps_of_rows
from agentrl.trajectory import Trajectory


class _Table(Protocol):
    @property
    def file_sizes(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def where(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class RewardRows:
    """Rows of pairs or labelled conversations, as `algorithm.name` has it, rendered for the model that is trained."""

    config: RunConfig
    chat: ChatFormat
    schemas: Sequence[ToolSchema]

    def training(self) -> tuple[Source, int]:
        """The source of `data.train_files`, and after how many steps the run ends.

        Raises:
            DataError: a file or a row cannot be used.
        """
        data = self.config.data
        seed = self.config.trainer.seed if data.seed is None else data.seed
        table, source = self._open(data.train_files, data.train_max_samples)
        tell_few_rows(len(table), self.config)
        order = task_order(table.file_sizes, data.dataset_weights, seed, data.shuffle)
        return source(order, data.train_batch_size), steps_of_rows(self.config, len(table))

    def held_out(self) -> Callable[[], list[Group]]:
        """Reads the groups of `data.val_files`, whose rows are checked here.

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
    """The rows of a run that trains a reward model, in the chat template of `model.path`.

    Raises:
        ConfigError: tokenizer, template or tools cannot be used.
    """
    toolbox = load_toolbox(config.rollout.multi_turn)
    stack.push_async_callback(toolbox.close)
    return RewardRows(config, load_chat(config), toolbox.schemas)


def load_trained_model(config: RunConfig, total_steps: int) -> TorchBackend:
    """The reward model that is trained: `model.path` with its head, or a language model's body with a new one.

    Raises:
        ConfigError: it cannot be used.
    """
    updates = updates_per_step(config.data.train_batch_size, config.actor.ppo_mini_batch_size, config.actor.ppo_epochs)
    return load_scalar_backend(
        config.model, config.actor, total_updates=max(1, total_steps) * updates, seed=config.trainer.seed
    )


def open_check(config: RunConfig, rows: RewardRows, algorithm: Algorithm, model: Backend) -> RewardModelCheck | None:
    """What checks the model on `data.val_files`, where there are any.

    Raises:
        ConfigError: a key names a metric that the check does not have.
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
            raise ConfigError(f"'{key}': this validation has no '{name}': {suggestion(name, names)}")
    return RewardModelCheck(rows.held_out(), algorithm, model.score, figures)


def _figures(pairs: bool, asked: RewardTrainingConfig) -> tuple[Figures, list[str]]:
    """What is said of held-out rows, and the names of it."""
    if pairs:
        return of_pairs, [f"val/{name}" for name in ("accuracy", "margin", "ece", "brier", "num_pairs")]
    if asked.loss == "mse":
        return of_numbers, ["val/mse", "val/rank_correlation"]
    return of_labels, [f"val/{name}" for name in ("accuracy", "ece", "brier", "auc")]
