"""`data.*`: which tasks, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, PositiveInt

from agentrl.config.base import Section, one_or_many

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Files = Annotated[tuple[str, ...], BeforeValidator(one_or_many)]


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
    shuffle: bool = True
    """Draw training tasks in a random order, new in every epoch."""
    seed: int | None = None
    """Seed of that order; the run's seed if none is given."""
    train_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first so many training rows; -1 uses all."""
    val_max_samples: int = Field(default=-1, ge=-1)
    """Use only the first so many validation rows; -1 uses all."""
    apply_chat_template_kwargs: dict[str, JsonValue] = {}
    """Extra variables for the chat template, such as enable_thinking."""
    output_path: Path | None = None
    """Generation: Parquet file of the rows with a column `responses`, the texts of their rollouts."""
