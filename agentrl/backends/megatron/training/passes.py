"""Forward and backward passes over micro-batches, with the pipeline schedules of megatron-core.

Axes: N trained tokens, S tokens of this process, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from agentrl.backends.fsdp.sequence import joined
from agentrl.backends.megatron.architecture.balancing import RoutedTokens, balanced_routers, balances
from agentrl.backends.megatron.architecture.positions import GivenPositions
from agentrl.backends.megatron.architecture.recomputed import PassValue, forward_of
from agentrl.backends.megatron.architecture.replay import give, replaying
from agentrl.backends.megatron.training.batches import PackedBatch, packed, padded_lengths, shared
from agentrl.backends.megatron.training.heads import Head, all_states
from agentrl.backends.megatron.training.prediction import PredictionLoss
from agentrl.backends.megatron.training.recorder import Recorder
from agentrl.backends.torch.batches import LossOf, MicroBatch, Outputs, micro_batch
from agentrl.backends.torch.gradients import IDLE, zero_loss
from agentrl.backends.torch.layout import pack_tokens

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig


class Passes:
    """Runs the chunks of a model on this process. All processes of a copy of the model run the same micro-batches.

    Args:
        head: the part after the last layer.
        prediction: the loss of layers for multi-token prediction; None if they are not trained.
        replays: whether tokens can use recorded experts, and experts can be recorded.
        shares_prefixes: whether common prefixes of samples are computed once.
    """

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: TransformerConfig,
        head: Head,
        device: torch.device,
        prediction: PredictionLoss | None,
        *,
        replays: bool,
        shares_prefixes: bool,
    ) -> None:
        self.chunks, self._config, self.device = chunks, config, device
        self._head, self.prediction = head, prediction
        self._slices = parallel_state.get_context_parallel_group()
        self._columns = parallel_state.get_tensor_model_parallel_group()
        self._replays = {chunk: replaying(chunk) for chunk in chunks} if replays else {}
        self._balances = balances(config)
        self.routers = {chunk: routers for chunk in chunks if (routers := balanced_routers(chunk))}
        self._values: dict[nn.Module, list[PassValue[Any]]] = {  # Any: values of several types
            chunk: [
                *(replay.wanted for replay in self._replays.get(chunk, ())),
                *(router.of_pass for router in self.routers.get(chunk, ())),
            ]
            for chunk in chunks
        }
        self._recorder: Recorder | None = None
        self._keeps = False
        self._positions = {chunk: GivenPositions(chunk) for chunk in chunks} if shares_prefixes else {}

    @contextmanager
    def recording(self, wanted: bool, *, keeps: bool) -> Iterator[list[list[Tensor]]]:
        """If wanted, record for each pass the experts of each sample's `used_tokens`, [T', layers, top k].

        Args:
            keeps: whether this process gets the recorded experts.
        """
        self._recorder, self._keeps = Recorder(self._config, self.device) if wanted else None, keeps
        try:
            yield self._recorder.passes if self._recorder else []
        finally:
            self._recorder = None

    def run(self, batches: Iterable[MicroBatch], loss_of: LossOf, *, entropy_gradient: bool) -> None:
        """See `RunsPasses.run`. `loss_of` is called only on the last pipeline stage."""
        if not (real := [*batches]):  # if `batches` is empty here, it is empty on all processes
            return
        idle = [micro_batch([IDLE], self.device)] * (self._num_passes(len(real)) - len(real))
        numbered = [*enumerate(self._packed([*real, *idle]))]
        num_tokens = self._num_tokens([batch for _, batch in numbered])
        if self.prediction is not None and torch.is_grad_enabled():
            self.prediction.begin([batch for _, batch in numbered])

        def step(inputs: Iterator[tuple[int, PackedBatch]], chunk: nn.Module) -> tuple[Tensor, partial[Any]]:
            number, batch = next(inputs)
            with forward_of(self._values[chunk]):
                self._begin(chunk, batch, num_tokens)
                others: list[Tensor] = []
                output = self._forward(chunk, batch, others, entropy_gradient=entropy_gradient)
            if self._recorder is not None:
                self._recorder.keep(number, batch, self._replays[chunk])
            return output, partial(self._loss, loss_of if number < len(real) else _nothing, number, others)

        schedule = get_forward_backward_func()
        schedule(
            forward_step_func=step,
            data_iterator=[iter(numbered) for _ in self.chunks],
            model=[*self.chunks],
            num_microbatches=len(numbered),
            seq_length=1,  # the stages tell each other the lengths
            micro_batch_size=1,
            forward_only=not torch.is_grad_enabled(),
        )
        if self._recorder is not None:
            self._recorder.collect([batch.paths for _, batch in numbered[: len(real)]], keeps=self._keeps)
        for value in (value for values in self._values.values() for value in values):
            value.clear()
        for replay in (replay for replays in self._replays.values() for replay in replays):
            replay.used = None
        if self.prediction is not None:
            self.prediction.end()

    def _num_tokens(self, batches: Sequence[PackedBatch]) -> int:
        """Return the mini-batch's number of tokens without padding; 0 if the routers do not need this number."""
        if not (self._balances and torch.is_grad_enabled()):
            return 0
        total = torch.tensor(sum(batch.num_tokens for batch in batches), device=self.device)
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        return int(total)

    def _begin(self, chunk: nn.Module, batch: PackedBatch, num_tokens: int) -> None:
        """Tell the routers which tokens the next pass has, and which experts were recorded."""
        size, rank, trains = self._columns.size(), self._columns.rank(), torch.is_grad_enabled()
        if self._replays:
            give(self._replays[chunk], batch.experts, rank, size, self._config.num_moe_experts, keeps=trains)
        size = size if self._config.sequence_parallel else 1
        padding = batch.padding.chunk(size)[rank % size]
        tokens = RoutedTokens(padding, batch.num_tokens / num_tokens, num_tokens) if num_tokens else None
        for router in self.routers.get(chunk, ()):
            router.of_pass.begin(tokens, keeps=trains)

    def _num_passes(self, wanted: int) -> int:
        """Return the number of passes for `wanted` micro-batches.

        The interleaved schedule needs a multiple of the number of stages. With gradients, it needs at least two passes
        per stage. With one pass per stage, the first stage would send its last output while the next stage sends its
        first gradient. Each of the two stages would then wait for the other to receive.
        """
        if len(self.chunks) == 1:
            return wanted
        stages: int = parallel_state.get_pipeline_model_parallel_world_size()
        return max(-(-wanted // stages), 2 if torch.is_grad_enabled() else 1) * stages

    def _packed(self, batches: Sequence[MicroBatch]) -> list[PackedBatch]:
        slices = self._slices.size()
        multiple = self._columns.size() if self._config.sequence_parallel else 1
        if self._positions:
            return self._shared(batches, multiple)
        lengths = [padded_lengths(batch, slices, multiple) for batch in batches]
        totals = self._totals([sum(each) for each in lengths])
        numbers = zip(batches, totals, strict=True)
        lengths = [padded_lengths(batch, slices, multiple, total) for batch, total in numbers]
        pairs = zip(batches, lengths, strict=True)
        ahead = 0 if self.prediction is None else self.prediction.num_layers
        make = partial(packed, num_slices=slices, index=self._slices.rank(), device=self.device, num_ahead=ahead)
        return [make(batch, own) for batch, own in pairs]

    def _shared(self, batches: Sequence[MicroBatch], multiple: int) -> list[PackedBatch]:
        tokens = [pack_tokens(batch.samples, {}, self.device) for batch in batches]
        totals = self._totals([-(-len(each.token_ids) // multiple) * multiple for each in tokens])
        return [shared(*each, self.device) for each in zip(batches, tokens, totals, strict=True)]

    def _totals(self, wanted: list[int]) -> list[int]:
        """Return the numbers of tokens of the micro-batches, made equal where megatron-core needs equal numbers."""
        if self._config.moe_token_dispatcher_type == "allgather":  # processes that share experts need equal numbers
            most = torch.tensor(wanted, device=self.device)
            dist.all_reduce(most, dist.ReduceOp.MAX, parallel_state.get_expert_model_parallel_group())
            wanted = most.tolist()
        if len(self.chunks) > 1 and parallel_state.get_pipeline_model_parallel_world_size() == 2:
            # with 2 stages, the next stage is also the previous stage: a process could confuse the lengths of outputs
            # with the lengths of gradients
            return [max(wanted)] * len(wanted)
        return wanted

    def _forward(self, chunk: nn.Module, batch: PackedBatch, others: list[Tensor], *, entropy_gradient: bool) -> Tensor:
        """Return hidden states for the next stage; on the last stage the outputs of the trained tokens, stacked.

        The last stage also computes losses that do not depend on these outputs, and adds them to `others`.
        """
        if self._positions:
            self._positions[chunk].wanted = batch.positions[0]
        output: Tensor = chunk(
            batch.token_ids,
            batch.positions,
            None,
            packed_seq_params=batch.bounds,
            output_processor=self._read,
            output_processor_context=(batch, others, entropy_gradient),
        )
        return output

    def _read(
        self,
        hidden_states: Tensor,
        output_layer: nn.Module,
        output_weight: Tensor | None,
        context: tuple[PackedBatch, list[Tensor], bool],
        **_: object,
    ) -> Tensor:
        """Read the outputs of the trained tokens from the states of all tokens, [S, 1, H]."""
        batch, others, entropy_gradient = context
        if self.prediction is not None and torch.is_grad_enabled():
            others.append(self.prediction.of(hidden_states, output_layer, output_weight, batch))
        sliced = self._config.sequence_parallel
        states_NH = all_states(hidden_states, is_sliced=sliced, sums=self._head.is_divided)[batch.predictors, 0]
        found = self._head.read(states_NH, output_layer, output_weight, batch, entropy_gradient=entropy_gradient)
        if self._slices.size() == 1:
            return torch.stack([*found])
        return torch.stack([joined(values, batch.predicted, self._slices) for values in found])

    def _loss(
        self, loss_of: LossOf, number: int, others: Sequence[Tensor], outputs: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return what the schedule expects: the loss, a token count that the schedule ignores, and no values to log."""
        value = loss_of(number, dict(zip(self._head.outputs, outputs, strict=True)))
        count = torch.zeros((), dtype=torch.int, device=self.device)
        return outputs.sum() if value is None else sum(others, start=value), count, {}


def _nothing(_: int, outputs: Outputs) -> Tensor | None:
    return zero_loss(outputs) if torch.is_grad_enabled() else None
