"""The backend: holds trainable weights, scores samples under them and updates them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from agentrl.algos.base import LossFunction
from agentrl.engines.base import WeightStream
from agentrl.samples import Sample


@dataclass(frozen=True, slots=True)
class Scores:
    """Per-token numbers of some samples, aligned with their tokens: 0 off the loss mask.

    Attributes:
        logprobs: [num samples][T], log-softmax(logits / temperature) at each trained token.
        entropy: [num samples][T], of the same distribution, in nats.
        values: [num samples][T] of a value or reward model, read where the token before was the last one seen; such a
            model has no log-probabilities, the two above are then empty.
    """

    logprobs: list[list[float]]
    entropy: list[list[float]]
    values: list[list[float]] | None = None


Score: TypeAlias = Callable[[Sequence[Sample]], Awaitable[Scores]]


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one update did: `loss`, `grad_norm`, `lr`, `num_tokens`, `num_micro_batches` and the loss's own metrics."""

    metrics: dict[str, float] = field(default_factory=dict)


class Backend(Protocol):
    """Trains. The policy, a reference policy and a critic are all backends.

    Methods do their work off the event loop; calls are served one at a time.
    """

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """One optimizer update on all of `samples` (one mini-batch), cut into micro-batches by token budget.

        The gradient does not depend on the cut. A non-finite gradient skips the update and is counted
        (`skipped_updates`).
        """
        ...

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """Log-probabilities and entropy of the trained tokens, without gradients."""
        ...

    def reference_score(self) -> Score | None:
        """`score` under the reference policy, where this backend holds it anyway: the base beneath a LoRA adapter.

        None where a reference policy needs a backend of its own.
        """
        ...

    def weights(self) -> WeightStream:
        """The current weights that training can change, under the names that the engine's model has too."""
        ...

    def checkpoint_weights(self) -> WeightStream:
        """The same as a checkpoint of the model has them: its names and shapes, an adapter added to what it changes."""
        ...

    async def save(self, path: Path) -> None:
        """Write weights (safetensors, Hugging Face layout), tokenizer, optimizer, schedule and random states."""
        ...

    async def load(self, path: Path) -> None:
        """Go on exactly where `save` was called."""
        ...

    async def close(self) -> None:
        """Free everything."""
        ...
