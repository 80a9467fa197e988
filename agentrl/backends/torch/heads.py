"""What is read from a model's states at each trained token: log-probabilities, or one number.

Axes: B rows, T tokens, N trained tokens, H hidden size, F features: logits, or the states as they are.
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
    """The part of a model that follows its body.

    Attributes:
        outputs: the names of what `read` gives.
    """

    @property
    def outputs(self) -> Sequence[str]: ...  # noqa: D102  # documented above

    def whole(self, token_ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """[B, T, F] from a forward pass of the whole model."""
        ...

    def tail(self) -> Features | None:
        """What makes features of the body's states; None where the model cannot be split."""
        ...

    def read(self, features: Features, states_NH: Tensor, batch: MicroBatch, *, entropy_gradient: bool) -> Outputs:
        """[N] of each output, in float32 at least."""
        ...

    def scores(self, found: dict[str, list[list[float]]]) -> Scores:
        """The outputs of some samples, [num samples][T] each, as a backend answers them."""
        ...


class LanguageHead:
    """Log-probabilities and entropy. Features are logits.

    What follows the body is the model's own forward pass with the body taken out, so a scaling or soft cap (Cohere,
    Granite, Gemma) is kept, and nothing here knows an architecture.
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
    """One number, a linear function of the state that a token is predicted from. Features are the states."""

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
    """How a kind of model is loaded to begin with, or from a checkpoint of its own, and what is read from it."""

    load: Callable[..., PreTrainedModel]
    load_again: Callable[..., PreTrainedModel]
    head: Callable[[PreTrainedModel], Head]


LANGUAGE = ModelKind(load_model, load_model, LanguageHead)
SCALAR = ModelKind(load_scalar_model, partial(load_scalar_model, new_head=False), ScalarHead)


class _States(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers is untyped
    """Hidden states alone; what else a model passes on from its body (router logits, cross attentions) is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _GivenStates(nn.Module):
    """Stands in for a model's body and answers the hidden states it is handed."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _States:
        return _States(last_hidden_state=inputs_embeds)


def _without_body(model: PreTrainedModel) -> nn.Module | None:
    if model.base_model is model:
        return None
    tail = copy.copy(model)  # shares every parameter; only its table of parts is its own
    tail._modules = {**model._modules, model.base_model_prefix: _GivenStates()}
    return cast(nn.Module, tail)
