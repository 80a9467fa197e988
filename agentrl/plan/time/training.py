"""Seconds of the trainer: forward and backward passes, communication, pipeline bubbles, and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from agentrl.backends.fsdp.assignment import assign
from agentrl.backends.packing import pack
from agentrl.plan.hardware import Hardware
from agentrl.plan.layout import Layout
from agentrl.plan.shapes import Shape, Weights
from agentrl.plan.time.collectives import Link, link_of
from agentrl.plan.time.flops import attention_flops, body_flops_per_token, head_flops_per_token
from agentrl.plan.time.passes import Passes
from agentrl.plan.time.unfused import Unfused
from agentrl.types.sample import Sample

BYTES = {"bf16": 2, "fp8": 2, "fp32": 4}
"""Bytes of a weight or activation; with fp8, weights and activations are kept in bf16 and converted to fp8."""
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 30
"""Bytes that AdamW reads and writes per weight. 16 bytes of float32 are kept and read: weight, gradient, two moments.
The weight and the moments (12 bytes) are written back, and the bf16 weight (2 bytes) is written (Rajbhandari et al.
2020, ZeRO, arXiv:1910.02054, section 3.1)."""


@dataclass(frozen=True)
class Training:
    """Speed of a trainer. See `LearnSpeed`."""

    shape: Shape
    layout: Layout
    hardware: Hardware
    passes: Passes

    def score_s(self, samples: Sequence[Sample]) -> float:
        """See `LearnSpeed.score_s`."""
        return self.passes.num_scored * max(
            (self._rank_s(rank, forwards=1.0) for rank in self._ranks(samples)), default=0.0
        )

    def learn_s(self, samples: Sequence[Sample]) -> float:
        """See `LearnSpeed.learn_s`. Each update waits for the process with the most work."""
        passes, step = self.passes, 0.0
        for update in self._updates(samples):
            step += max(self._rank_s(rank, forwards=passes.train_forwards) for rank in self._ranks(update))
            step += self.gradients_s() + self.optimizer_s()
        return passes.epochs * passes.num_trained * step

    def even_s(self, num_tokens: float, attention: float) -> float:
        """Return the seconds of scoring and updates for equally divided samples: an estimate of the shortest time.

        Args:
            num_tokens: tokens of the samples of a step.
            attention: FLOPs of the attention of these samples in one forward pass.
        """
        passes, updates = self.passes, self.passes.updates
        score = passes.num_scored * self._even_pass_s(num_tokens, attention, 1.0)
        update = self._even_pass_s(num_tokens / updates, attention / updates, passes.train_forwards)
        update += self.gradients_s() + self.optimizer_s()
        return score + passes.epochs * passes.num_trained * updates * update

    def _even_pass_s(self, num_tokens: float, attention: float, forwards: float) -> float:
        """Seconds of a pass over samples that are divided equally over ranks and micro-batches."""
        parts, layout = self.layout.data_parallel, self.layout
        number = max(1.0, num_tokens / parts / (self.passes.max_tokens * layout.context))
        in_turn = number + (layout.pipeline - 1) / layout.chunks
        return in_turn * self._stage_s(num_tokens / parts / number, attention / parts / number, forwards)

    def _updates(self, samples: Sequence[Sample]) -> list[Sequence[Sample]]:
        size = -(-len(samples) // self.passes.updates)
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def _ranks(self, samples: Sequence[Sample]) -> list[list[Sequence[int]]]:
        """Return the samples of each data-parallel rank, as token positions, assigned to ranks as in real runs."""
        return [[samples[index].token_ids for index in rank] for rank in assign(samples, self.layout.data_parallel)]

    def _rank_s(self, positions: Sequence[Sequence[int]], forwards: float) -> float:
        """Seconds of the micro-batches of one rank.

        With p stages and v chunks per stage, m micro-batches take (m + (p - 1) / v) x the time of one. The second term
        is the pipeline bubble (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
        """
        limit = self.passes.max_tokens * self.layout.context
        packs = pack([len(each) for each in positions], limit, padded=False)
        each = [self.micro_batch_s([positions[index] for index in members], forwards) for members in packs]
        if not each:
            return 0.0
        bubble = (self.layout.pipeline - 1) / self.layout.chunks * sum(each) / len(each)
        return sum(each) + bubble

    def micro_batch_s(self, positions: Sequence[Sequence[int]], forwards: float) -> float:
        """Return the seconds of one pipeline stage for one micro-batch of a rank.

        Args:
            positions: positions of the tokens of each sample, such as `range(100)`. If they start above 0, the
                earlier positions are a shared prefix, which another sample computes.
            forwards: work as a multiple of a forward pass: 1 to score, 3 to train, 4 with recomputation.
                With LoRA: 2 to train, 3 with recomputation.
        """
        attention = sum(attention_flops(self.shape, each[-1] + 1, each[0]) for each in positions)
        return self._stage_s(sum(map(len, positions)), attention, forwards)

    def _stage_s(self, tokens: float, attention: float, forwards: float) -> float:
        """Seconds of a stage for a micro-batch of `tokens` tokens; `attention` are the FLOPs of its attention."""
        layout = self.layout
        parts = layout.tensor * layout.context / self._stage_share
        flops = tokens * self._flops_per_token + attention
        compute = forwards * flops / parts / self.hardware.flops_per_s(self.passes.number)
        compute += self._unfused.traffic_s(tokens / layout.context, forwards)
        reading = forwards * self._stage_bytes() / self.hardware.bytes_per_s
        if forwards > 1:  # each micro-batch reads and writes the sum of the gradients
            reading += 2 * GRADIENT_BYTES * self._stage_weights() / self.hardware.bytes_per_s
        local = tokens / layout.context
        busy = max(compute, reading, self._unfused.launches_s(forwards)) + self._layers_s(local, forwards)
        busy += self.hardware.pass_overhead_ms / 1e3
        if layout.kind != "fsdp":
            return busy
        gathered = self._sharded_s(forwards)
        return max(busy, gathered) if self.hardware.overlaps else busy + gathered

    @cached_property
    def _flops_per_token(self) -> float:
        return body_flops_per_token(self.shape) + head_flops_per_token(self.shape)

    @cached_property
    def _unfused(self) -> Unfused:
        return Unfused(self.shape, self.layout, self.hardware, self.passes)

    @cached_property
    def _weights(self) -> Weights:
        return self.shape.weights  # cached, because it is a sum over all layers

    @cached_property
    def _stage_share(self) -> float:
        """Share of the layers in the largest pipeline stage, which the other stages wait for."""
        return max(map(len, self.layout.stages(self.shape.num_layers))) / self.shape.num_layers

    @cached_property
    def _sparse_share(self) -> float:
        layers = range(self.shape.num_layers)
        return sum(map(self.shape.is_sparse, layers)) / len(layers)

    def _layers_s(self, tokens: float, forwards: float) -> float:
        """Seconds of TP, EP and CP communication in the layers of a stage; forward and backward move equal bytes."""
        num_layers = self.shape.num_layers * self._stage_share
        passes = 1.0 if forwards == 1 else 2.0 + self.passes.recompute
        each = self._tensor_s(tokens) + self._context_s(tokens) + self._sparse_share * self._expert_s(tokens)
        return num_layers * passes * each

    def _tensor_s(self, tokens: float) -> float:
        """Seconds per layer of two all-reduces of the states (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""
        size = tokens * self.shape.hidden * BYTES[self.passes.number]
        return 2 * self._link(self.layout.tensor).reduce_s(size)

    def _expert_s(self, tokens: float) -> float:
        """Seconds per layer of two all-to-alls: expert inputs and outputs (Lepikhin et al. 2020, arXiv:2006.16668)."""
        layout = self.layout
        own = tokens / (layout.tensor if layout.sequence_parallel else 1)
        size = own * self.shape.experts_per_token * self.shape.hidden * BYTES[self.passes.number]
        return 2 * self._link(layout.expert * layout.expert_tensor).exchange_s(size)

    def _context_s(self, tokens: float) -> float:
        """Seconds of context parallelism per layer.

        Ulysses exchanges queries, keys, values and outputs (Jacobs et al. 2023, arXiv:2309.14509). CP sends keys and
        values around a ring (Liu et al. 2023, arXiv:2310.01889).
        """
        layout, of = self.layout, self.shape.attention
        keys = of.kv_heads * (of.head_dim + of.value_dim)
        size = tokens * BYTES[self.passes.number] / layout.tensor
        link = self._link(layout.context, layout.tensor)
        if layout.ulysses > 1:
            return 2 * link.exchange_s(size * (of.heads * (of.head_dim + of.value_dim) + keys) / 2)
        return link.gather_s(size * keys * layout.context)

    def _sharded_s(self, forwards: float) -> float:
        """Seconds in which FSDP2 gathers all weights: for the forward pass, and again for the backward pass if there is
        one (Zhao et al. 2023, arXiv:2304.11277)."""
        size = self._weights.total * BYTES[self.passes.number]
        each = self.shape.num_layers + 1  # one operation for each layer, and one for the other weights
        link = self._link(self.layout.fsdp_size)
        return (1 if forwards == 1 else 2) * each * link.gather_s(size / each)

    def gradients_s(self) -> float:
        """Return the seconds to add up the gradients over data-parallel ranks and to send the new weights back."""
        layout, weights = self.layout, self._trained
        if layout.kind == "torch":
            return 0.0
        if layout.kind == "fsdp":
            each = self.shape.num_layers + 1
            reduced = each * self._link(layout.fsdp_size).gather_s(GRADIENT_BYTES * weights / each)
            copies = layout.devices // layout.fsdp_size
            return reduced + self._link(copies, layout.fsdp_size).reduce_s(GRADIENT_BYTES * weights / layout.fsdp_size)
        experts = self._weights.experts / self._weights.total
        sizes = (GRADIENT_BYTES, BYTES[self.passes.number])
        dense = weights * (1 - experts) / (layout.tensor * layout.pipeline)
        routed = weights * experts / (layout.expert * layout.expert_tensor * layout.pipeline)
        link = self._link(layout.dense_copies, layout.tensor)
        expert_link = self._link(layout.expert_copies, layout.expert * layout.expert_tensor)
        return sum(link.gather_s(size * dense) + expert_link.gather_s(size * routed) for size in sizes)

    def optimizer_s(self) -> float:
        """Return the seconds of AdamW over the weights of one device, limited by the memory bandwidth."""
        own, fixed = OPTIMIZER_BYTES * self._trained / self._optimizer_parts, self.hardware.update_overhead_ms / 1e3
        return fixed + own / self.hardware.bytes_per_s

    @property
    def _optimizer_parts(self) -> int:
        return self.layout.fsdp_size if self.layout.kind == "fsdp" else self.layout.devices

    @property
    def _trained(self) -> float:
        return 0.0 if self.passes.frozen else float(self._weights.total)

    def _stage_weights(self) -> float:
        """Number of weights that a device reads for a micro-batch; experts that no token chooses are read, too."""
        layout, weights = self.layout, self._weights
        experts = weights.experts / (layout.expert * layout.expert_tensor)
        others = weights.total - weights.experts - weights.embeddings
        return (experts + others / layout.tensor) * self._stage_share

    def _stage_bytes(self) -> float:
        return BYTES[self.passes.number] * self._stage_weights()

    def _link(self, num: int, stride: int = 1) -> Link:
        return link_of(self.hardware, num, stride)
