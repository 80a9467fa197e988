"""Samples as tensors: the input of a loss for a micro-batch.

Axes: B samples, T tokens, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias, cast

import torch
from torch import Tensor

from agentrl.algos.base import TokenBatch
from agentrl.backends.packing import pack, pack_shared, token_keys
from agentrl.config.actor import ActorConfig
from agentrl.types.sample import Sample

Outputs: TypeAlias = dict[str, Tensor]
"""Model outputs at each trained token, [N], under the names in `TokenBatch`: logprobs and entropy, or scalars."""
LossOf: TypeAlias = Callable[[int, Outputs], "Tensor | None"]
"""(number of a micro-batch, model outputs of this micro-batch) -> loss; None if no backward pass is needed."""
OnePass: TypeAlias = Callable[[Callable[[], Outputs]], Outputs]
"""Runs a computation with a model's body and head, and returns the result of the computation."""


def at_once(compute: Callable[[], Outputs]) -> Outputs:
    """Run a computation with a model that is complete in this process."""
    return compute()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples and the positions of their trained tokens. A trained token at column t is predicted at column t - 1.

    Attributes:
        samples: [B], one sample for each row.
        loss_mask: [B, T] bool, true where a token is trained.
        rows, columns: [N], positions of the trained tokens.
        targets: [N], the trained tokens.
        temperatures: [N], sampling temperatures of the trained tokens; None if all are 1.
    """

    samples: Sequence[Sample]
    loss_mask: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    temperatures: Tensor | None

    def spread(self, values_N: Tensor) -> Tensor:
        """Put one value on each trained token, [B, T]; 0 elsewhere."""
        return values_N.new_zeros(self.loss_mask.shape).index_put((self.rows, self.columns), values_N)


def micro_batch(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """Convert samples to one micro-batch.

    Raises:
        ValueError: the first token of a sample is trained, but no token predicts it.
    """
    if any(sample.loss_mask[0] for sample in samples):
        raise ValueError("a sample trains its first token, which nothing predicts")
    loss_mask = padded([sample.loss_mask for sample in samples], torch.bool)
    rows, columns = loss_mask.nonzero(as_tuple=True)
    targets = padded([sample.token_ids for sample in samples], torch.long)[rows, columns]
    temperatures = padded([sample.temperatures for sample in samples], torch.float32)[rows, columns]
    found = MicroBatch(samples, *(tensor.to(device) for tensor in (loss_mask, rows, columns, targets, temperatures)))
    return replace(found, temperatures=None) if (temperatures == 1).all() else found


def token_batch(
    batch: MicroBatch,
    outputs: Mapping[str, Tensor],
    weights: Sequence[float],
    denominator: float,
    num_groups: int | None = None,
) -> TokenBatch:
    """Build the input of a loss. `weights`, [B], `denominator` and `num_groups`: see `TokenBatch`."""
    spread_outputs = {name: batch.spread(values_N) for name, values_N in outputs.items()}
    like = next(iter(spread_outputs.values())).detach()
    zeros = torch.zeros_like(like)

    def field(values: Sequence[Sequence[float] | None], dtype: torch.dtype = like.dtype) -> Tensor | None:
        present = [row for row in values if row is not None]
        if not present:
            return None
        if len(present) < len(values):
            raise ValueError("some samples of a micro-batch have values that other samples do not have")
        return padded(present, dtype).to(like.device)

    samples = batch.samples
    return TokenBatch(
        logprobs=spread_outputs.get("logprobs", zeros),
        entropy=spread_outputs.get("entropy", zeros),
        scalars=spread_outputs.get("scalars"),
        loss_mask=batch.loss_mask,
        advantages=cast(Tensor, field([sample.advantages for sample in samples])),
        behaviour_logprobs=field([sample.behaviour_logprobs for sample in samples]),
        old_logprobs=field([sample.old_logprobs for sample in samples]),
        ref_logprobs=field([sample.ref_logprobs for sample in samples]),
        weights=torch.tensor(weights, dtype=like.dtype, device=like.device),
        denominator=denominator,
        importance_weights=field([sample.importance_weights for sample in samples]),
        policy_versions=field([sample.policy_versions for sample in samples], torch.long),
        values=field([sample.values for sample in samples]),
        returns=field([sample.returns for sample in samples]),
        rollouts=_numbers([sample.rollout_id for sample in samples]).to(like.device),
        groups=_numbers([sample.uid for sample in samples]).to(like.device),
        num_groups=num_groups,
    )


def _numbers(names: Sequence[str]) -> Tensor:
    """Replace names by numbers (int64), [B]. Equal names get equal numbers; each empty name gets a new number."""
    known: dict[str | int, int] = {}
    return torch.tensor([known.setdefault(name or row, len(known)) for row, name in enumerate(names)])


def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
    """Pad rows of different lengths with 0 on the right, [B, T]; on the CPU."""
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    values_BT = torch.zeros(len(rows), int(lengths_B1.max()), dtype=dtype)
    values_BT[torch.arange(values_BT.shape[1]) < lengths_B1] = torch.tensor([*chain.from_iterable(rows)], dtype=dtype)
    return values_BT


CPU_TOKENS = 2048
"""Largest useful micro-batch on a CPU, in tokens: larger ones do not fit the CPU's caches and are slower."""

KEYS_PER_TOKEN = {"cpu": 64}
"""Type of device -> number of tokens whose copied keys and values use as much memory as computing one token. For other
types of devices this number is 16, because there each head has a separate copy (measurements: docs/gpu.md)."""


def cut(
    samples: Sequence[Sample],
    config: ActorConfig,
    shares_prefixes: bool,
    device: torch.device,
    *,
    copies_keys: bool = True,
    padded: bool = True,
    num_slices: int = 1,
) -> list[list[int]]:
    """Split the samples with trained tokens into micro-batches, each a list of indices.

    Args:
        copies_keys: whether attention copies the keys of shared prefixes, which takes memory.
        padded: whether samples are rows padded to the longest sample; not used with `shares_prefixes`.
        num_slices: number of devices that each compute a slice of the positions of the same samples.
    """
    trained = [index for index, sample in enumerate(samples) if sample.num_trained_tokens]
    max_tokens = config.ppo_max_token_len_per_gpu * num_slices if config.use_dynamic_bsz else None
    max_samples = config.ppo_micro_batch_size_per_gpu
    enough_tokens = min(max_tokens, CPU_TOKENS) if max_tokens and device.type == "cpu" else max_tokens
    if shares_prefixes:
        sequences = [token_keys(samples[index]) for index in trained]
        keys_per_token = KEYS_PER_TOKEN.get(device.type, 16) if copies_keys else None
        packs = pack_shared(sequences, max_tokens, max_samples, enough_tokens, keys_per_token)
    else:
        packs = pack([len(samples[index].token_ids) for index in trained], enough_tokens, max_samples, padded=padded)
    return [[trained[number] for number in numbers] for numbers in packs]
