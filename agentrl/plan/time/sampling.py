"""Predict the seconds that an engine replica needs for decode steps and prefill."""

from __future__ import annotations

import math

from agentrl.capabilities import engine_spec
from agentrl.config.run import RunConfig
from agentrl.plan.hardware import CPU, Hardware, Number
from agentrl.plan.layout import Servers
from agentrl.plan.shapes import Shape
from agentrl.plan.time.collectives import link_of
from agentrl.plan.time.flops import (
    attention_flops,
    body_flops_per_token,
    head_flops_per_token,
    latent_attention_flops,
)
from agentrl.plan.time.training import BYTES


class Sampling:
    """Speed of one replica. See `EngineSpeed`.

    A decode step reads the weights and the KV cache of all requests once. The step takes as long as reading or
    computing, whichever is longer (Pope et al. 2022, arXiv:2211.05102, section 2). Reading and computing are divided
    among the devices of the replica.

    Args:
        number: data type of weights and KV cache; `fp8` has 1 byte.
        fixed_rows: number of rows that each decoding pass computes, even if some are unused (`rollout.deterministic`);
            0: a pass computes only the used rows.
    """

    def __init__(
        self, shape: Shape, servers: Servers, hardware: Hardware, number: Number = "bf16", fixed_rows: int = 0
    ) -> None:
        self._shape, self._link = shape, link_of(hardware, servers.tensor)
        self._all, self._data = servers.tensor * servers.pipeline, servers.data
        self._parts = self._all / servers.data  # number of devices that compute a request together
        self._bytes = 1 if number == "fp8" else BYTES[number]
        self._flops_per_s, self._bytes_per_s = hardware.flops_per_s(number), hardware.bytes_per_s
        self._pass_s, self._row_s = hardware.pass_overhead_ms / 1e3, hardware.row_overhead_ms / 1e3
        self._fixed_rows = fixed_rows
        # SGLang replays CUDA graphs, so the CPU does not launch each layer
        launched = shape.num_layers if servers.embedded else 0
        self._launch_s = launched * hardware.layer_overhead_ms / 1e3
        self._body = body_flops_per_token(shape)
        self._head = head_flops_per_token(shape)
        self._experts, self._others = shape.weights.experts, _dense_weights(shape)
        self._attention = shape.weights.attention
        self._cached = _cached_numbers(shape, servers)
        self._per_key = _flops_per_key(shape)

    def decode_s(self, rows: float, context: float) -> float:
        """See `EngineSpeed.decode_s`."""
        passes = max(1, math.ceil(rows / self._fixed_rows)) if self._fixed_rows else 1
        computed = passes * self._fixed_rows or rows
        read = self._bytes * (passes * self._read(computed / passes) + self._cached * context / self._parts)
        flops = (computed * (self._body + self._head) + self._per_key * context) / self._parts
        work = max(read / self._bytes_per_s, flops / self._flops_per_s, passes * self._launch_s)
        return work + passes * self._pass_s + self._row_s * computed + self._layers_s(rows)

    def prefill_s(self, new: float, context: float) -> float:
        """See `EngineSpeed.prefill_s`. Prefill of one token is part of the next decode step."""
        if new <= 1:
            return 0.0
        flops = new * self._body + attention_flops(self._shape, context, context - new)
        return flops / self._parts / self._flops_per_s + self._layers_s(new)

    def _read(self, rows: float) -> float:
        """Number of weights that a device reads. Each data-parallel part has its own copy of the attention weights.

        All other weights are divided over all devices of the replica.
        """
        others = self.weights_read(rows * self._data) - self._attention
        return self._attention / self._parts + others / self._all

    def weights_read(self, rows: float) -> float:
        """Return the number of weights that a decode step of `rows` tokens reads.

        Each token chooses k of E experts. If all are equally likely, E (1 - (1 - k / E) ^ rows) experts are read.
        """
        if not self._experts:
            return self._others
        missed: float = (1 - self._shape.experts_per_token / self._shape.experts) ** rows
        return self._others + self._experts * (1 - missed)

    def _layers_s(self, tokens: float) -> float:
        """Seconds in which the devices of the replica all-reduce the hidden states, twice per layer."""
        return 2 * self._shape.num_layers * self._link.reduce_s(2 * tokens * self._shape.hidden)


def sampling_of(config: RunConfig, shape: Shape, servers: Servers, hardware: Hardware) -> Sampling:
    """Return the speed of a replica of a configuration."""
    number: Number = "fp32" if config.rollout.dtype == "float32" else "bf16"
    fixed = engine_spec(config.rollout.engine).fixed_rows if config.rollout.deterministic else {}
    rows = fixed.get("cpu" if hardware.name == CPU else "cuda", 0)
    # deterministic engines compute rows of MoE models one by one: otherwise a row's result depends on other rows
    most = 1 if shape.weights.experts else max_running(config, servers)
    return Sampling(shape, servers, hardware, number, min(rows, most))


def max_running(config: RunConfig, servers: Servers) -> int:
    """Return the largest number of requests computed together in a replica.

    If `rollout.max_num_seqs` is not set, the number is 128 for the embedded engine and 256 for a server.
    """
    return config.rollout.max_num_seqs or (128 if servers.embedded else 256)


def _dense_weights(shape: Shape) -> float:
    """Number of weights that every token reads: all except experts and embeddings. A tied head counts, too."""
    weights = shape.weights
    head = shape.vocabulary * shape.hidden if shape.tied else 0
    return float(weights.total - weights.experts - weights.embeddings + head)


def _cached_numbers(shape: Shape, servers: Servers) -> float:
    """Return how many numbers of the KV cache all devices of a replica together read for each cached token.

    Tensor-parallel devices hold different heads. If there are fewer KV heads than devices, several devices hold the
    same head. With MLA, each device holds all latent vectors.
    """
    of, sharing = shape.attention, servers.tensor / servers.data
    copies = sharing if of.is_latent else max(1.0, sharing / of.kv_heads)
    return of.cached * shape.num_layers * copies


def _flops_per_key(shape: Shape) -> float:
    """FLOPs of all layers per token of context, for one decoded token."""
    of = shape.attention
    if of.is_latent:
        return latent_attention_flops(shape, 1)
    return 2.0 * of.heads * (of.head_dim + of.value_dim) * shape.num_layers
