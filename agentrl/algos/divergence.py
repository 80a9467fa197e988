"""Estimators of the KL divergence to a reference, token by token (Schulman 2020, joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from agentrl.registry import Registry

MAX_LOG_RATIO, MAX_K3 = 20.0, 10.0  # verl's bounds; beyond them the value is cut and its gradient is 0

KL_ESTIMATORS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "KL estimator", aliases={"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
)
"""name -> function of d = logprobs - ref_logprobs."""


def kl(kind: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL(policy || reference) at each sampled token, in nats; same shape as `logprobs`, which carries the gradient.

    With d = logprobs - ref_logprobs:

        k1, kl           d                   unbiased, large variance, may be negative
        abs              |d|
        k2, mse          d^2 / 2             small bias; its gradient is the unbiased gradient of the KL
        k3, low_var_kl   exp(-d) + d - 1     unbiased, never negative; -d is cut to ±20 and the result to 10, as in verl

    With a + behind the name (k1+, k3+, ...) the value is that, and the gradient that of k2 (straight-through): in a
    loss, only k2 pulls towards the reference as the KL itself does.

    Raises:
        UnknownNameError: no such estimator.
    """
    d = logprobs - ref_logprobs
    value = KL_ESTIMATORS.get(kind.removesuffix("+"))(d)
    if not kind.endswith("+"):
        return value
    k2 = KL_ESTIMATORS.get("k2")(d)
    return value.detach() + (k2 - k2.detach())  # the bracket is exactly 0


@KL_ESTIMATORS.register("k1")
def _k1(d: Tensor) -> Tensor:
    return d


@KL_ESTIMATORS.register("abs")
def _abs(d: Tensor) -> Tensor:
    return d.abs()


@KL_ESTIMATORS.register("k2")
def _k2(d: Tensor) -> Tensor:
    return d.square() / 2


@KL_ESTIMATORS.register("k3")
def _k3(d: Tensor) -> Tensor:
    log_ratio = (-d).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (log_ratio.exp() - log_ratio - 1).clamp(max=MAX_K3)
