"""`data.*`: the tasks and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from agentrl.config.base import Section, one_or_many
from agentrl.config.uses import File, Folder, Options, Text, code

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Files = Annotated[tuple[Folder, ...], BeforeValidator(one_or_many)]


Share = Annotated[float, Field(gt=0, le=1)]

PASS_RATE = "pass_rate"
"""Value of `data.curriculum.by` for a curriculum by measured pass rate."""


class CurriculumConfig(Section):
    """Curriculum: the order of the tasks."""

    by: Text | None = None
    """Name of a column: each epoch is ordered from small to large values of this column. pass_rate: tasks whose
    measured pass rate is near target are drawn more often. null: no curriculum."""
    values: tuple[Text, ...] = ()
    """Values of the text column in `by`, in the order in which their rows are drawn."""
    descending: bool = False
    """Large values first."""
    target: float = Field(default=0.5, ge=0, le=1)
    """pass_rate: target pass rate; a task at the target is always drawn when its turn comes."""
    floor: Share = 0.1
    """pass_rate: probability that a task is drawn when its turn comes, if its pass rate is as far as possible from
    target."""
    smoothing: Share = 0.5
    """pass_rate: weight of the newest group in the running mean of a task's pass rate."""


class OnlineConfig(Section):
    """Tasks that tools and rewards add during a run (agentrl.data.online.add_task)."""

    max_tasks: NonNegativeInt = 0
    """Maximum number of added tasks that wait to be drawn; 0: none are accepted."""
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    """If the queue is full: drop the oldest waiting task, or refuse the new task."""
    share: Share = 0.5
    """Fraction of the draws that use an added task, while added tasks are waiting."""


class CustomDatasetConfig(Section):
    """Your own dataset class, which replaces the built-in reading of train_files and val_files."""

    path: Annotated[Path, code()] | None = None
    """Python file that defines the dataset class."""
    name: Annotated[str, code()] | None = None
    """Name of the class in that file. The class needs `__len__`, and a `__getitem__` that returns one row."""

    @model_validator(mode="after")
    def _both_are_given(self) -> Self:
        if (self.path is None) != (self.name is None):
            raise ValueError("set both path (a Python file) and name (a class in it)")
        return self


class DataConfig(Section):
    """The tasks and their order."""

    train_files: Files = ()
    """Training data: Parquet, JSON or JSONL files, or dataset names of the `datasets` library."""
    val_files: Files = ()
    """Validation data, in the formats of train_files."""
    prompt_key: Text = "prompt"
    """Column of the prompt: text, or a list of chat messages."""
    dataset_weights: tuple[Weight, ...] = ()
    """Relative sampling weight of each of train_files; empty: every row has the same weight."""
    system_prompt: Text | None = None
    """System message for prompts that have none."""
    train_batch_size: PositiveInt = 16
    """Tasks (groups) per step."""
    max_prompt_length: PositiveInt = 1024
    """Maximum prompt length, in tokens."""
    max_response_length: PositiveInt = 1024
    """Maximum response length, in tokens: everything after the prompt, including tool answers."""
    truncation: Literal["error", "left", "middle", "right"] = "error"
    """Treatment of prompts longer than max_prompt_length. error: refuse them. left, middle, right: cut the last user
    text on that side. Tools and system message are never cut."""
    filter_overlong_prompts: bool = False
    """Drop rows whose prompt is longer than max_prompt_length; the number of dropped rows is printed."""
    filter_overlong_prompts_workers: PositiveInt | None = None
    """Number of threads that measure prompt lengths; null: one per core. The result is the same for any number."""
    shuffle: bool = True
    """Shuffle the training tasks, differently in every epoch."""
    seed: int | None = None
    """Seed of the shuffle; null: the seed of the run."""
    train_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first N training rows; -1: all."""
    val_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first N validation rows; -1: all."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Curriculum."""
    online: OnlineConfig = OnlineConfig()
    """Tasks that tools and rewards add during a run."""
    custom_cls: CustomDatasetConfig = CustomDatasetConfig()
    """Your own dataset class."""
    apply_chat_template_kwargs: Options = {}
    """Extra variables for the chat template, such as enable_thinking."""
    output_path: File | None = None
    """Generation: Parquet file to write, with the rows and the texts of their rollouts in a new column `responses`."""

    @property
    def max_sequence_length(self) -> int:
        """Maximum length of prompt plus response, in tokens."""
        return self.max_prompt_length + self.max_response_length
