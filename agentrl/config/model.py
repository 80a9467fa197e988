"""`model.*`: which model, and how it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from agentrl.config.base import Section

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class ModelConfig(Section):
    """Which model, and how it is loaded."""

    path: str
    """Folder of a Hugging Face causal language model, or its name on the hub."""
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
