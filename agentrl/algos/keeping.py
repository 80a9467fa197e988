"""Which of the credited samples the loss reads: those that teach something, and were not cut off where that counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.samples import Sample

Keep = Callable[[Sequence[Sample]], list[Sample]]


def keep_of(algorithm: AlgorithmConfig) -> Keep | None:
    """What is left out under `algorithm`; None where nothing is.

    Imitation reads what passed the threshold, a pair its two rollouts, a ranking groups whose scores differ. A policy
    gradient reads all, unless `zero_variance_groups=drop` leaves out rollouts of advantage 0. `overlong_filter` leaves
    out rollouts that were cut off for their length (DAPO, arXiv:2503.14476), and then the other of their pair.
    """
    steps: list[Keep] = []
    family, ranks = algorithm.preset.family, algorithm.estimator == "scores"
    if algorithm.overlong_filter:
        steps.append(lambda samples: [sample for sample in samples if not sample.truncated])
    if not ranks and (family != "policy" or algorithm.zero_variance_groups == "drop"):
        steps.append(lambda samples: [sample for sample in samples if any(sample.advantages)])
    if ranks or algorithm.estimator == "best_worst":
        steps.append(_of_telling_groups)
    return _one_after_another(steps) if steps else None


def _of_telling_groups(samples: Sequence[Sample]) -> list[Sample]:
    """Those in whose group another has another advantage; a preference has one for all tokens of a rollout."""
    said: dict[str, set[float]] = {}
    for sample in samples:
        said.setdefault(sample.uid, set()).add(max(sample.advantages, key=abs))
    return [sample for sample in samples if len(said[sample.uid]) > 1]


def _one_after_another(steps: Sequence[Keep]) -> Keep:
    def keep(samples: Sequence[Sample]) -> list[Sample]:
        left = list(samples)
        for step in steps:
            left = step(left)
        return left

    return keep
