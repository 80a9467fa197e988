"""`model.*`: the model and how it is loaded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat

from agentrl.config.base import Section, one_or_many
from agentrl.config.uses import File, Folder, Text, code

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Modules = Annotated[tuple[Text, ...], BeforeValidator(one_or_many)]


class ModelConfig(Section):
    """The model and how it is loaded."""

    path: Folder
    """Folder of a Hugging Face causal language model or of a LoRA adapter, or a model name on the hub."""
    tokenizer_path: Folder | None = None
    """Folder or hub name of the tokenizer; null: the tokenizer of the model."""
    chat_template: File | None = None
    """Jinja file that replaces the tokenizer's chat template."""
    dtype: Dtype = "auto"
    """Data type of the trained weights; auto: that of the checkpoint."""
    attn_implementation: Annotated[str, code("attention")] = "sdpa"
    """Attention implementation of transformers, in training and in the embedded engine."""
    trust_remote_code: Annotated[bool, code()] = False
    """Allow code that ships with the model to run."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    lora_rank: NonNegativeInt = 0
    """Rank of the trained LoRA adapters; 0: no LoRA, all weights are trained."""
    lora_alpha: PositiveFloat = 16
    """LoRA alpha: the adapter's output is scaled by alpha / rank."""
    target_modules: Modules = ("all-linear",)
    """Modules with a LoRA adapter, matched by the end of their name; all-linear: all linear layers except the head."""
    exclude_modules: Modules = ()
    """Modules that get no adapter, even if target_modules matches them."""
    lora_adapter_path: Folder | None = None
    """Folder of an existing LoRA adapter, which is trained further instead of a new adapter."""

    def without_adapter(self, path: str | None = None) -> ModelConfig:
        """Return the options for loading a model without its LoRA adapter; `path`, if given, replaces `self.path`."""
        return self.model_copy(update={"path": path or self.path, "lora_rank": 0, "lora_adapter_path": None})
