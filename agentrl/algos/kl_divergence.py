"""Per-token estimators of the KL divergence to a reference (Schulman 2020, joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from agentrl.registry import Registry

MAX_LOG_RATIO, MAX_K3 = 20.0, 10.0  # verl's bounds; values beyond them are clamped and have gradient 0

KL_ESTIMATORS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "KL estimator", aliases={"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
)
"""name -> function of d = logprobs - ref_logprobs."""


def kl(kind: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """KL(policy || reference) at each sampled token, in nats, with gradient; same shape as `logprobs`.

    With d = logprobs - ref_logprobs:

        k1, kl           d                   unbiased, large variance, may be negative
        abs              |d|
        k2, mse          d^2 / 2             small bias; its gradient is the unbiased gradient of the KL
        k3, low_var_kl   exp(-d) + d - 1     unbiased, never negative; -d is clamped to ±20, the result to 10 (verl)

    A suffix + (k1+, k3+, ...) keeps the value but uses the gradient of k2 (straight-through). As a loss term, only k2
    has the gradient of the KL.

    Raises:
        UnknownNameError: there is no such estimator.
    """
    d = logprobs - ref_logprobs
    value = KL_ESTIMATORS.get(kind.removesuffix("+"))(d)
    if not kind.endswith("+"):
        return value
    k2 = KL_ESTIMATORS.get("k2")(d)
    return value.detach() + (k2 - k2.detach())  # the value in brackets is exactly 0


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
