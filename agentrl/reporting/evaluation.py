"""Results of an evaluation: rewards, success and pass rates with confidence intervals, by data source and overall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from agentrl.rollouts.metrics import rollout_metrics
from agentrl.stats.base import Estimate, plain
from agentrl.stats.intervals import mean_estimate
from agentrl.stats.pass_at_k import pass_at_k_estimate, pass_hat_k_estimate
from agentrl.types.rollout import Group, Rollout

EVAL_FILE = "eval.json"
LEVEL = 0.95
"""Confidence level of all intervals."""

_OF_TOKENS = ("response_length/", "num_turns/")
_OF_SCORES = ("reward/", "success", "groups/", "rollouts/")


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of one data source, or of all data sources.

    Rollouts that failed or have no score are counted, but excluded from the estimates. A task is a row of the dataset:
    all rollouts of a row are grouped together, even if the row was drawn several times.

    Attributes:
        num_empty: number of tasks without any valid, scored rollout.
        reward, success: means over rollouts; the intervals are clustered by task (see `agentrl.stats.intervals`). None
            if no rollout was scored.
        pass_at_k, pass_hat_k: k -> estimate over the tasks with at least k scored rollouts. k is 1, 2, 4, ... and the
            largest number of scored rollouts of a task.
        metrics: metrics of `rollout_metrics`, without turns and lengths if the rollouts have no tokens.
    """

    num_tasks: int
    num_rollouts: int
    num_failed: int
    num_infra_failed: int
    num_unscored: int
    num_empty: int
    reward: Estimate | None
    success: Estimate | None
    pass_at_k: Mapping[int, Estimate]
    pass_hat_k: Mapping[int, Estimate]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of all rollouts, and of each data source; data sources are sorted by name."""

    overall: Summary
    sources: Mapping[str, Summary]

    def values(self) -> dict[str, JsonValue]:
        """Return the content of `eval.json`: validation metrics as `val/...`, and the estimates."""
        metrics = {**self.overall.metrics, "num_tasks": float(self.overall.num_tasks)}
        return {
            **{f"val/{name}": plain(value) for name, value in metrics.items()},
            "level": LEVEL,
            "overall": plain(asdict(self.overall)),
            "sources": {name: plain(asdict(summary)) for name, summary in self.sources.items()},
        }


def evaluation(groups: Iterable[Group], success_threshold: float, *, texts_only: bool = False) -> Evaluation:
    """Evaluate groups; rollouts of the same task may be spread over several groups.

    Args:
        texts_only: whether the rollouts have only a text and a score; then `Summary.metrics` contains only metrics
            that are computed from scores.
    """
    every = list(groups)
    by_source: dict[str, list[Group]] = defaultdict(list)
    for group in every:
        by_source[group.task.data_source].append(group)
    return Evaluation(
        _summary(every, success_threshold, texts_only),
        {source: _summary(by_source[source], success_threshold, texts_only) for source in sorted(by_source)},
    )


def _summary(groups: Sequence[Group], threshold: float, texts_only: bool) -> Summary:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tasks = _scores_by_task(groups)
    passed = [[float(score >= threshold) for score in scores] for scores in tasks]
    counts = [(len(scores), int(sum(scores))) for scores in passed if scores]
    ks = _ks(max((n for n, _ in counts), default=0))
    return Summary(
        num_tasks=len(tasks),
        num_rollouts=len(rollouts),
        num_failed=sum(rollout.failed for rollout in rollouts),
        num_infra_failed=sum(rollout.infra_failed for rollout in rollouts),
        num_unscored=sum(not rollout.failed and not _scored(rollout) for rollout in rollouts),
        num_empty=len(tasks) - len(counts),
        reward=mean_estimate(tasks, LEVEL) if counts else None,
        success=mean_estimate(passed, LEVEL) if counts else None,
        pass_at_k={k: found for k in ks if (found := pass_at_k_estimate(counts, k, LEVEL))},
        pass_hat_k={k: found for k in ks if (found := pass_hat_k_estimate(counts, k, LEVEL))},
        metrics=_metrics(groups, threshold, texts_only),
    )


def _scores_by_task(groups: Sequence[Group]) -> list[list[float]]:
    tasks: dict[tuple[str, int], list[float]] = defaultdict(list)
    for group in groups:
        scores = [each.reward for each in group.rollouts if _scored(each) and not each.failed]
        tasks[group.task.data_source, group.task.index] += scores
    return list(tasks.values())


def _metrics(groups: Sequence[Group], threshold: float, texts_only: bool) -> dict[str, float]:
    """Return the metrics of scored and failed rollouts. A rollout that neither failed nor has a score is excluded."""
    counted = [Group(group.task, [each for each in group.rollouts if each.failed or _scored(each)]) for group in groups]
    metrics = rollout_metrics(counted, threshold)
    if texts_only:
        return {name: value for name, value in metrics.items() if name.startswith(_OF_SCORES)}
    has_tokens = any(each.trajectories and each.trajectories[0].segments for group in groups for each in group.rollouts)
    return {name: value for name, value in metrics.items() if has_tokens or not name.startswith(_OF_TOKENS)}


def _scored(rollout: Rollout) -> bool:
    return "score" in rollout.rewards


def _ks(most: int) -> list[int]:
    """Return the powers of two below `most`, then `most`."""
    return sorted({2**power for power in range(most.bit_length())} | {most}) if most else []
