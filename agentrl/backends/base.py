"""Protocol of a backend: holds trainable weights, scores samples and updates the weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agentrl.algos.base import LossFunction
from agentrl.capabilities import backend_spec, backends_with, check_installed
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.run import RoutedBy, RunConfig
from agentrl.engines.base import WeightStream
from agentrl.errors import ConfigError, Kind, Problem
from agentrl.types.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of samples: one number per token, 0 where the loss mask is 0.

    Attributes:
        logprobs: `[num samples][T]`, log-softmax(logits / temperature) at each trained token.
        entropy: `[num samples][T]`, entropy of the same distribution, in nats.
        values: `[num samples][T]`, outputs of a value or reward model; None for a language model. A token's value
            depends only on earlier tokens. With values, `logprobs` and `entropy` are empty.
        routed_experts: the experts that computed each sample, in the form of `Sample.routed_experts`. The entry of a
            sample without trained tokens is None. If experts are not recorded, the attribute is None.
    """

    logprobs: list[list[float]]
    entropy: list[list[float]]
    values: list[list[float]] | None = None
    routed_experts: list[Tensor | None] | None = None


Score: TypeAlias = Callable[[Sequence[Sample]], Awaitable[Scores]]


@dataclass(frozen=True, slots=True)
class StepStats:
    """Metrics of one update: `loss`, `grad_norm`, `lr`, `num_tokens`, `num_micro_batches`, and metrics of the loss."""

    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model that a backend should load: the policy, a reference, a critic or a reward model.

    Attributes:
        actor: training options of this model, in the form of an `actor` section.
        total_updates: length of the learning rate schedule in updates, unless `actor.optim.total_updates` is set.
        trainable: false for a model that only scores, such as a reference policy.
        value_head: the model outputs one number per token, as a critic or a reward model does.
        key: the configuration key that contains the model's path, for error messages.
        routed_by: which component records the experts that training uses again for each token (routing replay).
            rollout: the engine records the experts. actor: `Backend.score` records the experts that the router chooses.
            None: recorded experts are ignored.
    """

    model: ModelConfig
    actor: ActorConfig
    total_updates: int = 1
    trainable: bool = True
    value_head: bool = False
    key: str = "model.path"
    routed_by: RoutedBy | None = None


class Backend(Protocol):
    """Holds and trains a model. The policy, a reference policy and a critic each have a backend.

    The async methods do their work outside the event loop, one call at a time.
    """

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids that the model can read."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens in a sequence; None if the model has no limit."""
        ...

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """Do one optimizer update on `samples`, a complete mini-batch, which is split into micro-batches.

        The gradient does not depend on the split. If the gradient is not finite, the update is skipped and counted in
        the metric `skipped_updates`.
        """
        ...

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """Compute log-probabilities and entropy of the trained tokens, without gradients.

        A policy with `routed_by="actor"` also records the experts that its router chooses.
        """
        ...

    def reference_score(self) -> Score | None:
        """Return a function that scores under the reference policy: the base model of this backend's LoRA adapter.

        Return None without an adapter. The reference policy then needs a separate backend.
        """
        ...

    def weights(self) -> WeightStream:
        """Yield the current values of the trained weights, under the Hugging Face names of the model in memory.

        If no weight is frozen, buffers are also yielded.
        """
        ...

    def checkpoint_weights(self) -> WeightStream:
        """Yield the result of `weights` with the names and shapes of a checkpoint, and with the adapter merged."""
        ...

    async def copy_weights(self, weights: WeightStream) -> None:
        """Replace this backend's weights by `weights`, which come from another backend with the same model."""
        ...

    async def save(self, path: Path) -> None:
        """Write a checkpoint: weights (safetensors, Hugging Face layout), tokenizer, optimizer and random states."""
        ...

    async def begin_save(self, path: Path) -> Future[None]:
        """Copy the state to CPU memory, and write the copy to the empty folder `path` while the backend continues.

        The folder is complete when the returned future is done; the future raises disk errors. Folders are
        written in the order of the calls. Only backends with the capability `async_save` have this method.
        """
        ...

    async def load(self, path: Path) -> None:
        """Restore the exact state that `save` wrote."""
        ...

    async def close(self) -> None:
        """Free all resources."""
        ...


def load_backend(config: RunConfig, request: ModelRequest) -> Backend:
    """Load a model with the backend `actor.backend`.

    Raises:
        ConfigError: the backend is not installed or does not support a value head, or the model or device cannot be
            used.
    """
    name = config.actor.backend
    check_installed(name)
    spec = backend_spec(name)
    if request.value_head and not spec.value_head:
        instead = backends_with("value_head")
        text = f"`actor.backend={name}` trains no critic and no reward model: use {instead}"
        raise ConfigError(Problem("actor.backend", Kind.NOT_SUPPORTED, text))
    backend: Backend = spec.load(config, request)
    return backend
