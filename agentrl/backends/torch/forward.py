"""Logits at chosen positions only, for any Hugging Face causal language model.

Axes: B rows, T tokens, N chosen positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

if TYPE_CHECKING:
    from transformers import PreTrainedModel


logger = logging.getLogger(__name__)


class _States(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers is untyped
    """Hidden states alone; what else a model passes on from its body (router logits, cross attentions) is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _GivenStates(nn.Module):
    """Stands in for a model's body and answers the hidden states it is handed."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _States:
        return _States(last_hidden_state=inputs_embeds)


class PositionwiseModel:
    """A causal language model split into `states` (its body, at chosen positions) and `logits` (all that follows).

    What follows the body is the model's own forward pass with the body taken out, so a head's scaling or soft cap
    (Cohere, Granite, Gemma) is kept, and nothing here knows an architecture. Right padding is invisible to causal
    attention, so the body runs without a mask, on its fast path. Both are checked once on a small batch; a model that
    does not allow them is run whole.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self._tail: nn.Module | None = _without_body(model)
        if self._tail is not None and not self._agrees():
            self._tail = None
            logger.warning("%s is run whole: its logits cannot be taken at chosen positions only", type(model).__name__)

    @property
    def splits(self) -> bool:
        """Whether the model could be split."""
        return self._tail is not None

    def states(self, token_ids_BT: Tensor, mask_BT: Tensor, rows_N: Tensor, columns_N: Tensor) -> Tensor:
        """[N, H] at the chosen positions of right-padded rows; [N, V], already logits, if the model is run whole."""
        if self._tail is None:
            output = self.model(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False)
            return cast(Tensor, output.logits[rows_N, columns_N])
        output = self.model.base_model(input_ids=token_ids_BT, use_cache=False)
        return cast(Tensor, output[0][rows_N, columns_N])

    def logits(self, states_NH: Tensor) -> Tensor:
        """[N, V] from `states`."""
        return states_NH if self._tail is None else cast(Tensor, self._tail(inputs_embeds=states_NH[None]).logits[0])

    @torch.no_grad()
    def _agrees(self) -> bool:
        device = self.model.device
        token_ids_BT = (torch.arange(14, device=device) * 7 % self.vocab_size).view(2, 7)
        mask_BT = torch.ones_like(token_ids_BT)
        mask_BT[1, 4:] = 0
        rows_N, columns_N = mask_BT.nonzero(as_tuple=True)
        whole = self.model(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False).logits[rows_N, columns_N]
        try:
            split = self.logits(self.states(token_ids_BT, mask_BT, rows_N, columns_N))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
            return False  # its forward pass needs more of its body than the last hidden states
        tolerance = max(1e-3, 8 * torch.finfo(whole.dtype).eps) * float(whole.abs().max())
        return split.shape == whole.shape and torch.allclose(split, whole, rtol=0, atol=tolerance)


def _without_body(model: PreTrainedModel) -> nn.Module | None:
    if model.base_model is model:
        return None
    tail = copy.copy(model)  # shares every parameter; only its table of parts is its own
    tail._modules = {**model._modules, model.base_model_prefix: _GivenStates()}
    return cast(nn.Module, tail)
