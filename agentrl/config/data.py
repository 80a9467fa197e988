"""`data.*`: which tasks, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, NonNegativeInt, PositiveInt, model_validator

from agentrl.config.base import Section, one_or_many

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Files = Annotated[tuple[str, ...], BeforeValidator(one_or_many)]


Share = Annotated[float, Field(gt=0, le=1)]

PASS_RATE = "pass_rate"
"""What `data.curriculum.by` says where tasks are drawn by how often they are solved."""


class CurriculumConfig(Section):
    """Which tasks come when."""

    by: str | None = None
    """A column, its small values first in every epoch; or pass_rate, as measured: tasks near target come more often."""
    values: tuple[str, ...] = ()
    """Where the column holds text: its values, the first ones first."""
    descending: bool = False
    """Large values first."""
    target: float = Field(default=0.5, ge=0, le=1)
    """pass_rate: the rate of tasks that are drawn whenever their turn comes."""
    floor: Share = 0.1
    """pass_rate: in which share of its turns a task is drawn that is as far from target as can be."""
    smoothing: Share = 0.5
    """pass_rate: what the newest group counts in a task's running mean."""


class OnlineConfig(Section):
    """Tasks that tools and rewards add while the run goes on (agentrl.data.online.add_task)."""

    max_tasks: NonNegativeInt = 0
    """Most that wait to be drawn; 0 takes none."""
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    """What goes when a further one comes: the one that waited longest, or the new one."""
    share: Share = 0.5
    """How many of the tasks that are drawn come from there, while some wait."""


class CustomDatasetConfig(Section):
    """Rows from the user's own class, in place of how train_files and val_files are read."""

    path: Path | None = None
    """Python file that defines it."""
    name: str | None = None
    """Its name in that file: __len__, and __getitem__ that gives a row as a file would hold it."""

    @model_validator(mode="after")
    def _both_are_given(self) -> Self:
        if (self.path is None) != (self.name is None):
            raise ValueError("path and name must both be given, a Python file and a class in it")
        return self


class DataConfig(Section):
    """Which tasks, in which order."""

    train_files: Files = ()
    """Parquet, JSON or JSONL files, or names of the `datasets` library, to train on."""
    val_files: Files = ()
    """The same, to validate on."""
    prompt_key: str = "prompt"
    """Column that holds the prompt: text, or a list of chat messages."""
    dataset_weights: tuple[Weight, ...] = ()
    """How often each of train_files is drawn, in proportion; none given: every row as often as any other."""
    system_prompt: str | None = None
    """System message put before prompts that bring none."""
    train_batch_size: PositiveInt = 16
    """Tasks (groups) a step."""
    max_prompt_length: PositiveInt = 1024
    """Longest prompt, in tokens."""
    max_response_length: PositiveInt = 1024
    """Longest response, in tokens: everything after the prompt, tool text included."""
    truncation: Literal["error", "left", "middle", "right"] = "error"
    """A longer prompt is refused (error), or its last user text is cut on that side; never the tools or the system."""
    filter_overlong_prompts: bool = False
    """Leave out longer prompts instead, and say how many."""
    filter_overlong_prompts_workers: PositiveInt | None = None
    """Threads that measure prompts; null: one a core. The answer is the same."""
    shuffle: bool = True
    """Draw training tasks in a random order, new in every epoch."""
    seed: int | None = None
    """Seed of that order; the run's seed if none is given."""
    train_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first so many training rows; -1 uses all."""
    val_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first so many validation rows; -1 uses all."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Which tasks come when."""
    online: OnlineConfig = OnlineConfig()
    """Tasks that tools and rewards add while the run goes on."""
    custom_cls: CustomDatasetConfig = CustomDatasetConfig()
    """Rows from the user's own class."""
    apply_chat_template_kwargs: dict[str, JsonValue] = {}
    """Extra variables for the chat template, such as enable_thinking."""
    output_path: Path | None = None
    """Generation: Parquet file of the rows with a column `responses`, the texts of their rollouts."""
