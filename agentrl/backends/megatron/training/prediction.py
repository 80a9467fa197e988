"""Loss that trains the layers for multi-token prediction, so that they keep predicting the changing policy.

The gradient stops at the states, the embedding and the head of the policy, so the policy's own gradient is unchanged.

Axes: N trained tokens, S tokens of this process, H hidden size, R rows of the vocabulary on this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor, nn

from agentrl.backends.base import ModelRequest
from agentrl.backends.megatron.training.batches import PackedBatch
from agentrl.backends.megatron.training.heads import LanguageHead, all_states
from agentrl.backends.megatron.weights.source import Source, num_layers_ahead
from agentrl.errors import ConfigError, Kind

METRIC = "mtp_loss"
KEY = "actor.megatron.mtp_loss_scaling_factor"


def num_trained(request: ModelRequest, source: Source) -> int:
    """Return the number of layers for multi-token prediction that are trained.

    Raises:
        ConfigError: these layers should be trained, but the model is a LoRA adapter: its base model is not trained.
    """
    if request.value_head or not (request.trainable and request.actor.megatron.mtp_loss_scaling_factor):
        return 0
    if source.adapter is not None:
        text = f"`{KEY}` trains layers of the model, but `{request.key}` is a LoRA adapter: remove one of the two"
        raise ConfigError.at(KEY, Kind.CONFLICT, text)
    return num_layers_ahead(source.config)


def check_same_layers(same: bool, *, trained: bool) -> None:
    """Check that this run trains the layers for multi-token prediction if and only if the resumed run trained them.

    Args:
        same: whether the two runs agree.
        trained: whether this run trains the layers.

    Raises:
        ConfigError: `same` is false.
    """
    if not same:
        text = f"`{KEY}` must stay {'0' if trained else 'above 0'}, as in the run that wrote the checkpoint"
        raise ConfigError.at(KEY, Kind.CONFLICT, text)


class PredictionLoss:
    """Cross entropy of each layer's predictions of the trained tokens, at temperature 1.

    The loss is the mean over the tokens of the mini-batch and over the layers, times `factor`. Every method except `of`
    must be called by all processes together.

    Args:
        chunks: the chunks of this process; the last chunk of the last pipeline stage has `PredictionLayers`.
        vocabulary: number of logits, see `LanguageHead`.
        num_layers: number of layers for multi-token prediction.
    """

    def __init__(self, chunks: Sequence[LanguageModule], vocabulary: int, num_layers: int, factor: float) -> None:
        self._chunks, self.num_layers, self._factor = chunks, num_layers, factor
        self._head = LanguageHead(vocabulary)
        self._columns = parallel_state.get_tensor_model_parallel_group()
        self._embedding: Tensor | None = None

    def begin(self, batches: Sequence[PackedBatch]) -> None:
        """Begin a mini-batch: count the targets of each layer, and copy the embedding to the last pipeline stage."""
        counts = [sum(int(batch.ahead[layer][0].sum()) for batch in batches) for layer in range(self.num_layers)]
        device = batches[0].token_ids.device
        self._counts = torch.tensor(counts, dtype=torch.float32, device=device)
        dist.all_reduce(self._counts, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        self._embedding = _embedding(self._chunks)
        self._sum = torch.zeros((), dtype=torch.float64, device=device)

    def end(self) -> None:
        """Free the copy of the embedding."""
        self._embedding = None

    def of(self, states: Tensor, output_layer: nn.Module, output_weight: Tensor | None, batch: PackedBatch) -> Tensor:
        """Return this process's part of the loss of a micro-batch. Called only on the last pipeline stage.

        Args:
            states: states of the model after its last norm, [S, 1, H].
            output_layer, output_weight: see `Head.read`.
        """
        chunk: Any = self._chunks[-1]  # Any: megatron-core is untyped
        weight: Any = output_layer.weight if output_weight is None else output_weight
        sliced, rotary = chunk.config.sequence_parallel, _rotary(chunk, states, batch)
        embed = partial(self._embed, sliced=sliced)
        ahead = chunk.mtp(states.detach(), batch.token_ids, batch.bounds, rotary, embed)
        losses = []
        for (predicted_N, predictors), own, count in zip(batch.ahead, ahead, self._counts, strict=True):
            states_NH = all_states(own, is_sliced=sliced, sums=True)[predictors, 0]
            logprobs_N, _ = self._head.logprobs(states_NH, weight.detach(), batch.batch.targets[predicted_N])
            losses.append(-logprobs_N.sum() / count.clamp(min=1))
        loss: Tensor = torch.stack(losses).mean()
        self._sum += loss.detach()
        return self._factor * loss

    def _embed(self, input_ids: Tensor, *, sliced: bool, **_: object) -> Tensor:
        """Return embeddings, [S, 1, H], of `input_ids`, [1, S], without gradient; if `sliced`, this process's slice."""
        rows_RH = self._embedding
        assert rows_RH is not None
        shifted_S = input_ids[0] - self._columns.rank() * len(rows_RH)
        own_S = (shifted_S >= 0) & (shifted_S < len(rows_RH))
        states_SH = rows_RH[torch.where(own_S, shifted_S, 0)] * own_S[:, None]
        dist.all_reduce(states_SH, group=self._columns)
        own: Tensor = states_SH.chunk(self._columns.size())[self._columns.rank()] if sliced else states_SH
        return own[:, None]

    def collect(self) -> dict[str, float]:
        """Return the loss of the mini-batch, without the factor."""
        reports = parallel_state.is_pipeline_last_stage() and self._columns.rank() == 0
        total = self._sum if reports else torch.zeros_like(self._sum)
        dist.all_reduce(total)
        return {METRIC: float(total)}


def _embedding(chunks: Sequence[LanguageModule]) -> Tensor | None:
    """Return the embedding, which the first pipeline stage sends to the last; stages between them return None."""
    is_first = parallel_state.is_pipeline_first_stage()
    own = chunks[0].embedding.word_embeddings.weight.detach() if is_first else None
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return own
    if is_first or parallel_state.is_pipeline_last_stage():
        found = torch.empty_like(chunks[-1].output_layer.weight) if own is None else own
        first = parallel_state.get_pipeline_model_parallel_first_rank()
        dist.broadcast(found, first, group=parallel_state.get_embedding_group())
        return found.detach()
    return None


def _rotary(chunk: Any, states: Tensor, batch: PackedBatch) -> Tensor | None:
    """Return the rotary embeddings that the layers of a chunk get; None with latent attention."""
    if chunk.config.multi_latent_attention:
        return None
    length = chunk.rotary_pos_emb.get_rotary_seq_len(None, chunk.decoder, states, chunk.config, batch.bounds)
    found: Tensor = chunk.rotary_pos_emb(length, packed_seq=True)
    return found
