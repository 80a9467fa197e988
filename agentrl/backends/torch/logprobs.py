"""Log-probabilities and entropy of chosen tokens, with bounded memory.

Axes: N tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Read: TypeAlias = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]]
"""(logits [N, V] in float32, targets [N], whether entropy has a gradient) -> (log-probabilities [N], entropy [N])."""
MAX_LOGITS = 2**27
"""Maximum number of logits in memory at the same time: 512 MB in float32."""


def softmax_logprobs(logits_NV: Tensor, targets_N: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return the targets' log-probabilities, and the entropy, from logits of the complete vocabulary."""
    log_softmax_NV = logits_NV.log_softmax(-1)
    logprobs_N = log_softmax_NV.gather(-1, targets_N[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        return logprobs_N, -torch.linalg.vecdot(log_softmax_NV.exp(), log_softmax_NV)


def token_logprobs(
    logits_of: Callable[[Tensor], Tensor],
    states_NH: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor | None,
    vocab_size: int,
    *,
    entropy_gradient: bool,
    read: Read = softmax_logprobs,
) -> tuple[Tensor, Tensor]:
    """log-softmax(logits / temperature) at the targets, [N], and the entropy of that distribution, [N], in nats.

    Computed in float32 or higher precision for any model dtype. A temperature of 0 (greedy) counts as 1; None means 1
    for all tokens. If there are more than `MAX_LOGITS` logits, they are computed in chunks, and computed again in the
    backward pass.
    """
    piece = partial(_piece, logits_of, read, entropy_gradient)
    num_tokens = max(1, MAX_LOGITS // vocab_size)
    if states_NH.shape[0] <= num_tokens:
        return piece(states_NH, targets_N, temperatures_N)
    tensors = (states_NH, targets_N, temperatures_N)
    slices = [slice(start, start + num_tokens) for start in range(0, states_NH.shape[0], num_tokens)]
    chunks = [[None if tensor is None else tensor[chunk] for tensor in tensors] for chunk in slices]
    parts = [checkpoint(piece, *chunk, use_reentrant=False) for chunk in chunks]
    logprobs, entropy = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropy)


def _piece(
    logits_of: Callable[[Tensor], Tensor],
    read: Read,
    entropy_gradient: bool,
    states_NH: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor | None,
) -> tuple[Tensor, Tensor]:
    logits_NV = logits_of(states_NH)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    if temperatures_N is not None:
        divisors_N = torch.where(temperatures_N > 0, temperatures_N, 1.0)
        logits_NV = logits_NV / divisors_N[:, None].to(logits_NV.dtype)
    return read(logits_NV, targets_N, entropy_gradient)
