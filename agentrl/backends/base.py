"""Protocol of a backend: holds trainable weights, scores samples and updates the weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from agentrl.algos.base import LossFunction
from agentrl.engines.base import WeightStream
from agentrl.types.sample import Sample


@dataclass(frozen=True, slots=True)
class Scores:
    """Per-token numbers of samples, aligned with their tokens; 0 off the loss mask.

    Attributes:
        logprobs: `[num samples][T]`, log-softmax(logits / temperature) at each trained token.
        entropy: `[num samples][T]`, entropy of the same distribution, in nats.
        values: `[num samples][T]` of a value or reward model. A token's value depends only on the tokens before it.
            Such a model has no log-probabilities: `logprobs` and `entropy` are then empty.
    """

    logprobs: list[list[float]]
    entropy: list[list[float]]
    values: list[list[float]] | None = None


Score: TypeAlias = Callable[[Sequence[Sample]], Awaitable[Scores]]


@dataclass(frozen=True, slots=True)
class StepStats:
    """Metrics of one update: `loss`, `grad_norm`, `lr`, `num_tokens`, `num_micro_batches` and the loss's metrics."""

    metrics: dict[str, float] = field(default_factory=dict)


class Backend(Protocol):
    """Holds and trains a model. The policy, a reference policy and a critic each have a backend.

    Methods run outside the event loop, one call at a time.
    """

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """Do one optimizer update on all of `samples` (one mini-batch), split into micro-batches by token budget.

        The gradient does not depend on the split. A non-finite gradient skips the update and is counted
        (`skipped_updates`).
        """
        ...

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """Compute log-probabilities and entropy of the trained tokens, without gradients."""
        ...

    def reference_score(self) -> Score | None:
        """Return `score` under the reference policy if this backend has it: the base model of a LoRA adapter.

        None if a reference policy needs a separate backend.
        """
        ...

    def weights(self) -> WeightStream:
        """Yield the current trainable weights, under the engine's weight names."""
        ...

    def checkpoint_weights(self) -> WeightStream:
        """Yield the same weights with checkpoint names and shapes; an adapter is merged into its layers."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights (safetensors, Hugging Face layout), tokenizer, optimizer, schedule and random states."""
        ...

    async def load(self, path: Path) -> None:
        """Restore exactly the state at the call of `save`."""
        ...

    async def close(self) -> None:
        """Free all resources."""
        ...
