"""`model.*`: which model, and how it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat

from agentrl.config.base import Section, one_or_many

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Modules = Annotated[tuple[str, ...], BeforeValidator(one_or_many)]


class ModelConfig(Section):
    """Which model, and how it is loaded."""

    path: str
    """Folder of a Hugging Face causal language model or of a LoRA adapter, or a model's name on the hub."""
    tokenizer_path: str | None = None
    """Folder or name of another tokenizer, if not the model's own."""
    chat_template: Path | None = None
    """Jinja file that replaces the tokenizer's chat template."""
    dtype: Dtype = "auto"
    """Number type of the trained weights; auto takes the checkpoint's."""
    attn_implementation: str = "sdpa"
    """Attention of transformers used in training and in the embedded engine."""
    trust_remote_code: bool = False
    """Whether code that ships with the model may run."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    lora_rank: NonNegativeInt = 0
    """Rank of the LoRA adapters that are trained in place of the weights; 0 trains the weights themselves."""
    lora_alpha: PositiveFloat = 16
    """What LoRA's update is scaled by, divided by the rank."""
    target_modules: Modules = ("all-linear",)
    """Modules that get an adapter, by the end of their name; all-linear is every linear one but the head."""
    exclude_modules: Modules = ()
    """Modules that get none all the same."""
    lora_adapter_path: str | None = None
    """Folder of an adapter to go on training, in place of a new one."""
