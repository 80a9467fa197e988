"""pass@k (at least one of k attempts passes) and pass^k (all k pass), from n attempts of which c passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

from agentrl.stats.base import Estimate
from agentrl.stats.intervals import task_mean_estimate


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k attempts, drawn without replacement, passed: 1 - C(n-c, k) / C(n, k).

    An unbiased estimate for k new attempts (Chen et al. 2021, arXiv:2107.03374, equation 1). Only the final division
    rounds. With n = 4, c = 1, k = 2, three of the six pairs contain the attempt that passed: 0.5.

    Raises:
        ValueError: not 1 <= k <= n, or not 0 <= c <= n.
    """
    _check(n, c, k)
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that all k attempts passed: C(c, k) / C(n, k) (tau-bench, Yao et al. 2024, arXiv:2406.12045).

    Raises:
        ValueError: as for `pass_at_k`.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def pass_at_k_estimate(tasks: Sequence[tuple[int, int]], k: int, level: float = 0.95) -> Estimate | None:
    """Mean `pass_at_k` over the tasks with at least k attempts; None if there is no such task.

    Args:
        tasks: (n, c) of each task. `num` of the estimate counts the tasks with at least k attempts.
    """
    return _over_tasks(pass_at_k, tasks, k, level)


def pass_hat_k_estimate(tasks: Sequence[tuple[int, int]], k: int, level: float = 0.95) -> Estimate | None:
    """Mean `pass_hat_k` over the tasks with at least k attempts; None if there is no such task."""
    return _over_tasks(pass_hat_k, tasks, k, level)


def _over_tasks(
    passing: Callable[[int, int, int], float], tasks: Sequence[tuple[int, int]], k: int, level: float
) -> Estimate | None:
    shares = [[passing(n, c, k)] * n for n, c in tasks if n >= k]  # one value for each attempt of the task
    return task_mean_estimate(shares, level, share=True) if shares else None


def _check(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"expected 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
