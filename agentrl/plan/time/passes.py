"""Read from the configuration which passes, updates and micro-batches the trainer computes in a step."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config.run import RunConfig
from agentrl.plan.hardware import Number
from agentrl.plan.time.flops import BACKWARD, BACKWARD_FROZEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Forward and backward passes of the trainer in one step.

    Attributes:
        num_scored: number of forward passes over all tokens before the update: at most one each for old
            log-probabilities, reference log-probabilities and values.
        num_trained: number of models that are updated: the policy, and the critic if there is one.
        epochs: passes over the samples in the update.
        updates: optimizer steps per epoch.
        recompute: whether the backward pass computes the layers again (gradient checkpointing).
        frozen: whether the weights of the model have no gradients (LoRA).
        max_tokens: largest micro-batch of a process, in tokens.
        shares_prompts: whether equal prompts of a micro-batch are computed once.
        number: data type of the matrix products.
    """

    num_scored: int = 0
    num_trained: int = 1
    epochs: int = 1
    updates: int = 1
    recompute: bool = False
    frozen: bool = False
    max_tokens: int = 16384
    shares_prompts: bool = False
    number: Number = "bf16"

    @property
    def train_forwards(self) -> float:
        """FLOPs of forward and backward pass together, as a multiple of the forward pass."""
        return 1 + self.recompute + (BACKWARD_FROZEN if self.frozen else BACKWARD)


def passes_of(config: RunConfig) -> Passes:
    """Return the passes of a configuration. User-defined estimators are assumed to have no critic."""
    correction, actor = config.algorithm.rollout_correction, config.actor
    critic = config.algorithm.estimator == "gae"
    scored = [correction.corrects or not correction.bypass_mode, config.uses_reference, critic]
    groups, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    limited = actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else None
    longest = config.data.max_prompt_length + config.data.max_response_length
    return Passes(
        num_scored=sum(map(bool, scored)),
        num_trained=1 + critic,
        epochs=actor.ppo_epochs,
        updates=-(-groups // mini) if mini else 1,
        recompute=config.model.enable_gradient_checkpointing,
        frozen=bool(config.model.lora_rank or config.model.lora_adapter_path),
        max_tokens=limited or longest * (actor.ppo_micro_batch_size_per_gpu or groups * config.group_size),
        shares_prompts=actor.share_prefixes,
        number="fp32" if config.model.dtype == "float32" and actor.autocast in (None, "float32") else "bf16",
    )
