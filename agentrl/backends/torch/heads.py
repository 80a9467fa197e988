"""Heads: read log-probabilities or one number per trained token from a model's states.

Axes: B rows, T tokens, N trained tokens, H hidden size, F features (logits, or the unchanged states).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from agentrl.backends.base import Scores
from agentrl.backends.torch.batches import MicroBatch, Outputs
from agentrl.backends.torch.logprobs import token_logprobs
from agentrl.models.loading import load_model
from agentrl.models.scalar import HEAD, load_scalar_model, scalars_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Features = Callable[[Tensor], Tensor]
"""[N, H] states of the body -> [N, F]."""


class Head(Protocol):
    """The part of a model after its body.

    Attributes:
        outputs: names of the outputs of `read`.
    """

    @property
    def outputs(self) -> Sequence[str]: ...  # noqa: D102  # documented above

    def whole(self, token_ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Run the complete model and return features, [B, T, F]."""
        ...

    def tail(self) -> Features | None:
        """Return the function from the body's states to features; None if the model cannot be split."""
        ...

    def read(self, features: Features, states_NH: Tensor, batch: MicroBatch, *, entropy_gradient: bool) -> Outputs:
        """Compute each output, [N], in float32 or higher precision."""
        ...

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """Convert the outputs of samples, [num samples][T] each, to `Scores`."""
        ...


class LanguageHead:
    """Log-probabilities and entropy. Features are logits.

    To run only the part after the body, the complete model runs with its body replaced by a module that returns given
    states. So the model's own forward still scales or soft-caps logits (Cohere, Granite, Gemma), and no code depends on
    an architecture.
    """

    outputs = ("logprobs", "entropy")

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._vocab_size: int = model.config.get_text_config().vocab_size

    def whole(self, token_ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See `Head.whole`."""
        return cast(Tensor, self._model(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False).logits)

    def tail(self) -> Features | None:
        """See `Head.tail`."""
        without_body = _without_body(self._model)
        return without_body and (lambda states_NH: cast(Tensor, without_body(inputs_embeds=states_NH[None]).logits[0]))

    def read(self, features: Features, states_NH: Tensor, batch: MicroBatch, *, entropy_gradient: bool) -> Outputs:
        """See `Head.read`."""
        logprobs_N, entropy_N = token_logprobs(
            features,
            states_NH,
            batch.targets,
            batch.temperatures,
            self._vocab_size,
            entropy_gradient=entropy_gradient,
        )
        return {"logprobs": logprobs_N, "entropy": entropy_N}

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """See `Head.scores`."""
        return Scores(found["logprobs"], found["entropy"])


class ScalarHead:
    """One number per trained token: a linear function of the state that predicts the token. Features are the states."""

    outputs = ("scalars",)

    def __init__(self, model: PreTrainedModel) -> None:
        self._body = model.base_model
        self._linear: nn.Linear = getattr(model, HEAD)

    def whole(self, token_ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """See `Head.whole`."""
        return cast(Tensor, self._body(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False)[0])

    def tail(self) -> Features:
        """See `Head.tail`."""
        return lambda states_NH: states_NH

    def read(self, features: Features, states_NH: Tensor, batch: MicroBatch, *, entropy_gradient: bool) -> Outputs:
        """See `Head.read`."""
        return {"scalars": scalars_of(self._linear, features(states_NH))}

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """See `Head.scores`."""
        return Scores([], [], values=found["scalars"])


@dataclass(frozen=True, slots=True)
class ModelKind:
    """How to load a model at the start (`load`) or from a checkpoint (`load_again`), and how to create its head."""

    load: Callable[..., PreTrainedModel]
    load_again: Callable[..., PreTrainedModel]
    head: Callable[[PreTrainedModel], Head]


LANGUAGE = ModelKind(load_model, load_model, LanguageHead)
SCALAR = ModelKind(load_scalar_model, partial(load_scalar_model, new_head=False), ScalarHead)


class _States(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers is untyped
    """Hidden states only; all other outputs of a body (router logits, cross attentions) are None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _GivenStates(nn.Module):
    """Replaces a model's body and returns the hidden states that it receives."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _States:
        return _States(last_hidden_state=inputs_embeds)


def _without_body(model: PreTrainedModel) -> nn.Module | None:
    if model.base_model is model:
        return None
    tail = copy.copy(model)  # a shallow copy: shares every parameter; only the table of submodules is new
    tail._modules = {**model._modules, model.base_model_prefix: _GivenStates()}
    return cast(nn.Module, tail)
