"""What feeds a run from rows that hold whole conversations: one each, or a pair of which the first is preferred."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat.format import ChatFormat
from agentrl.config.data import DataConfig
from agentrl.data.dialogues import Dialogue, load_dialogues
from agentrl.data.order import task_order
from agentrl.data.pairs import load_pairs
from agentrl.errors import DataError, TemplateError
from agentrl.messages import ToolSchema
from agentrl.trainer.pair_source import PairSource
from agentrl.trainer.parts import Source
from agentrl.trainer.rollout_parts import RolloutParts
from agentrl.trainer.source import SavedSource
from agentrl.trajectory import Trajectory


def open_saved_source(rollouts: RolloutParts, seed: int) -> tuple[Source, int]:
    """The source that `algorithm.name` asks for, and how many rows it draws from.

    Args:
        seed: of the order of the rows.

    Raises:
        DataError: a file or a row cannot be used.
    """
    data, size = rollouts.config.data, rollouts.config.data.train_batch_size
    if rollouts.config.algorithm.preset.feed == "pairs":
        pairs = load_pairs(data.train_files, data, max_samples=data.train_max_samples)
        order = task_order(pairs.file_sizes, data.dataset_weights, seed, data.shuffle)

        def render_side(dialogue: Dialogue, row: int) -> Trajectory:
            return _rendered(rollouts, dialogue, pairs.where(row))

        return PairSource(pairs.__getitem__, render_side, order, size), len(pairs)
    dialogues = load_dialogues(data.train_files, data, max_samples=data.train_max_samples)

    def render(row: int) -> Trajectory:
        return _rendered(rollouts, dialogues[row], dialogues.where(row))

    order = task_order(dialogues.file_sizes, data.dataset_weights, seed, data.shuffle)
    return SavedSource(render, order, size), len(dialogues)


def _rendered(rollouts: RolloutParts, dialogue: Dialogue, where: str) -> Trajectory:
    return rendered(dialogue, where, rollouts.chat, rollouts.toolbox.schemas, rollouts.config.data)


def rendered(
    dialogue: Dialogue, where: str, chat: ChatFormat, schemas: Sequence[ToolSchema], data: DataConfig
) -> Trajectory:
    """A conversation as a trajectory of demonstrations.

    Args:
        where: file and row, for errors.
        schemas: of the tools, where the conversation brings none of its own.

    Raises:
        DataError: the template refuses it, or it is too long.
    """
    schemas = schemas if dialogue.tools is None else dialogue.tools
    try:
        trajectory = chat.dialogue(dialogue.messages, schemas)
    except TemplateError as error:
        raise DataError(f"{where}: {error}") from error
    if (length := len(trajectory.token_ids)) > data.max_prompt_length + data.max_response_length:
        raise DataError(
            f"{where}: the conversation has {length} tokens, more than data.max_prompt_length +"
            f" data.max_response_length, {data.max_prompt_length} + {data.max_response_length}"
        )
    return trajectory
