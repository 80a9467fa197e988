"""Bytes on one device of an engine: weights, and the KV cache of the rollouts that run at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from agentrl.config.run import RunConfig
from agentrl.plan.layout import Servers
from agentrl.plan.memory.precision import engine_bytes
from agentrl.plan.shapes import Shape

EMBEDDED_SEQUENCES = 128
"""Default `rollout.max_num_seqs` of the embedded engine. Copied from `agentrl.engines.torch.engine` (imports torch)."""
USUAL_SHARE = 0.85
"""Approximate share of the memory that SGLang uses for weights and KV cache, if `mem_fraction_static` is not set."""
MEAN_LENGTH = 0.5
"""Mean length of a running rollout, as a share of the maximum length; an assumption."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Sizes on one device of an engine.

    Attributes:
        weights: bytes of the weights on the device.
        kv_token: bytes of the KV cache for one token.
        running: number of rollouts that run on one engine at a time.
        longest: maximum length of a rollout, in tokens.
        limit: largest number of tokens in the cache (`rollout.max_kv_tokens`); None: no limit.
    """

    weights: float
    kv_token: float
    running: int
    longest: int
    limit: int | None

    @property
    def needed_tokens(self) -> int:
        """Number of tokens of all running rollouts, with the mean length; at least the maximum length of a rollout."""
        return max(self.longest, ceil(self.running * self.longest * MEAN_LENGTH))

    def tokens_in(self, num_bytes: float) -> int:
        """Return how many tokens of KV cache fit beside the weights; 0 if the weights do not fit."""
        found = int(max(0.0, num_bytes - self.weights) / self.kv_token)
        return found if self.limit is None else min(found, self.limit)


def engine_of(config: RunConfig, shape: Shape, servers: Servers) -> Engine:
    """Return the sizes on one device of the configured engines."""
    size = engine_bytes(config, shape)
    return Engine(
        weights=_weights(shape, servers) * size,
        kv_token=_kv_numbers(shape, servers) * size,
        running=num_running(config, servers),
        longest=config.data.max_sequence_length,
        limit=config.rollout.max_kv_tokens,
    )


def _weights(shape: Shape, servers: Servers) -> float:
    """Number of weights on one device. Each data-parallel part has all attention weights of a server."""
    whole = shape.weights
    divided = whole.total - whole.norms - whole.router
    copied = (servers.data - 1) * whole.attention
    return (divided + copied) / (servers.tensor * servers.pipeline) + (whole.norms + whole.router) / servers.pipeline


def _kv_numbers(shape: Shape, servers: Servers) -> float:
    """Return how many numbers the KV cache of one device holds for each token of the server.

    Every device caches at least one head, or all latent vectors.
    """
    of, tensor = shape.attention, max(1, servers.tensor // servers.data)
    one = of.cached if of.is_latent else of.cached / of.kv_heads * ceil(of.kv_heads / tensor)
    return one * shape.num_layers / servers.pipeline / servers.data


def num_running(config: RunConfig, servers: Servers) -> int:
    """Return the number of rollouts that run at a time on one engine."""
    trainer, rollout = config.trainer, config.rollout
    groups = config.data.train_batch_size * (1 + trainer.over_sampling)
    if trainer.max_staleness:
        groups *= 1 + trainer.max_staleness
    all_running = min(trainer.max_concurrent_rollouts, ceil(groups * config.group_size))
    most = rollout.max_num_seqs or (EMBEDDED_SEQUENCES if servers.embedded else all_running)
    return min(ceil(all_running / servers.replicas), most)
