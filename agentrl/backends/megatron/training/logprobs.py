"""Log-probabilities and entropy from logits that are divided over the vocabulary.

Axes: N tokens, V columns of this process.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp


def divided_logprobs(
    group: dist.ProcessGroup, first: int, logits_NV: Tensor, targets_N: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target, [N], and the entropy in nats, [N].

    Args:
        group: the processes that together have all columns. All of them get the same result.
        first: the number of the first column of `logits_NV`.
    """
    shifted_N = targets_N - first
    found = _DividedLogprobs.apply(logits_NV, shifted_N, group)  # type: ignore[no-untyped-call]  # untyped in torch
    logprobs_N, entropy_N = cast(Tensor, found)
    return logprobs_N, entropy_N if entropy_gradient else entropy_N.detach()


class _DividedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, group: dist.ProcessGroup) -> Tensor:  # Any: as in torch
        def total(values: Tensor, operation: ReduceOp.RedOpType = ReduceOp.SUM) -> Tensor:
            dist.all_reduce(values, operation, group=group)
            return values

        shifted_NV = logits_NV - total(logits_NV.amax(-1), ReduceOp.MAX)[:, None]
        exponentials_NV = shifted_NV.exp()
        sums_N = total(exponentials_NV.sum(-1))
        probabilities_NV = exponentials_NV.div_(sums_N[:, None])
        own_N = (targets_N >= 0) & (targets_N < logits_NV.shape[-1])
        columns_N1 = torch.where(own_N, targets_N, 0)[:, None]
        chosen_N = total(torch.where(own_N, shifted_NV.gather(-1, columns_N1)[:, 0], 0.0))
        means_N = total(torch.linalg.vecdot(probabilities_NV, shifted_NV))
        ctx.save_for_backward(probabilities_NV, shifted_NV, means_N, own_N, columns_N1)
        normalizers_N = sums_N.log()
        return torch.stack([chosen_N - normalizers_N, normalizers_N - means_N])

    @staticmethod
    def backward(ctx: Any, gradients_2N: Tensor) -> tuple[Tensor, None, None]:
        """With p the probabilities: d logprob = 1[target] - p, d entropy = p (mean - logit)."""
        probabilities_NV, shifted_NV, means_N, own_N, columns_N1 = ctx.saved_tensors
        of_logprobs_N, of_entropy_N = gradients_2N
        slopes_NV = of_entropy_N[:, None] * (means_N[:, None] - shifted_NV) - of_logprobs_N[:, None]
        slopes_NV *= probabilities_NV
        slopes_NV.scatter_add_(-1, columns_N1, torch.where(own_N, of_logprobs_N, 0.0)[:, None])
        return slopes_NV, None, None
