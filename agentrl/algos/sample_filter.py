"""Filters samples after advantages are computed: drops truncated samples and samples without a learning signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.types.excluded import Excluded
from agentrl.types.sample import Sample

Keep = Callable[[Sequence[Sample]], list[Sample]]


def keep_of(algorithm: AlgorithmConfig) -> Keep | None:
    """Return the filter that `algorithm` configures; None if nothing is filtered.

    - Imitation: keep demonstrations, and rollouts that reach the threshold.
    - Pair loss: keep the two rollouts of each pair. Ranking loss: keep groups whose scores differ.
    - Policy gradient: keep all samples, or with `zero_variance_groups=drop` only samples with a nonzero advantage.

    `overlong_filter` drops rollouts truncated by a length limit (DAPO, arXiv:2503.14476) and the other rollout of their
    pair.
    """
    steps: list[Keep] = []
    family, ranks = algorithm.preset.family, algorithm.estimator == "scores"
    if algorithm.overlong_filter:
        steps.append(lambda samples: [sample for sample in samples if not sample.truncated])
    if not ranks and (family != "policy" or algorithm.zero_variance_groups == "drop"):
        steps.append(lambda samples: [sample for sample in samples if any(sample.advantages)])
    if ranks or algorithm.estimator == "best_worst":
        steps.append(_of_informative_groups)
    return _one_after_another(steps) if steps else None


def excluded_by_loss(samples: Sequence[Sample], corrected: Sequence[Sample], *, overlong: bool) -> dict[str, Excluded]:
    """Return rollout id -> reason, for the rollouts in `samples` that have no token in the loss.

    Args:
        corrected: the samples that the loss reads.
        overlong: whether truncated rollouts are filtered.
    """
    kept = {sample.rollout_id for sample in corrected}
    used = {sample.rollout_id for sample in corrected if any(sample.loss_mask)}
    return {
        sample.rollout_id: Excluded.REJECTED_BY_CORRECTION
        if sample.rollout_id in kept
        else Excluded.OVERLONG
        if overlong and sample.truncated
        else Excluded.NO_ADVANTAGE
        for sample in samples
        if sample.rollout_id and sample.rollout_id not in used
    }


def _of_informative_groups(samples: Sequence[Sample]) -> list[Sample]:
    """Keep groups whose rollouts have different advantages. All tokens of a rollout have the same advantage."""
    advantages_of: dict[str, set[float]] = {}
    for sample in samples:
        advantages_of.setdefault(sample.uid, set()).add(max(sample.advantages, key=abs))
    return [sample for sample in samples if len(advantages_of[sample.uid]) > 1]


def _one_after_another(steps: Sequence[Keep]) -> Keep:
    def keep(samples: Sequence[Sample]) -> list[Sample]:
        left = list(samples)
        for step in steps:
            left = step(left)
        return left

    return keep
