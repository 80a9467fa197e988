"""Assign the samples of a mini-batch to ranks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence

from agentrl.algos.base import Scope
from agentrl.types.sample import Sample

BALANCED = 1.1
"""Groups stay complete on one rank as long as no rank gets more than this multiple of the mean number of tokens."""

_UNITS: tuple[tuple[Scope, Callable[[Sample], str]], ...] = (
    ("group", lambda sample: sample.uid or sample.rollout_id),
    ("rollout", lambda sample: sample.rollout_id),
    ("row", lambda sample: ""),
)


def assign(samples: Sequence[Sample], num_ranks: int, scope: Scope = "row") -> list[list[int]]:
    """Give all ranks similar numbers of tokens; return the indices of each rank's samples.

    The samples of a group stay on one rank, because they share a prefix. If a rank would get too many tokens
    (see `BALANCED`), rollouts or single samples are assigned instead of groups. For scope "group" or "rollout", the
    samples that the loss needs together always stay on one rank.
    """
    smallest = {"group": 1, "rollout": 2}.get(scope, 3)
    for _, unit_of in _UNITS[:smallest]:
        ranks = _longest_first(samples, num_ranks, unit_of)
        if imbalance(samples, ranks) <= BALANCED:
            break
    return ranks


def imbalance(samples: Sequence[Sample], ranks: Sequence[Sequence[int]]) -> float:
    """Return the largest number of tokens on a rank, divided by the mean over ranks; 1 without samples."""
    loads = [sum(len(samples[index].token_ids) for index in indices) for indices in ranks]
    return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0


def _longest_first(samples: Sequence[Sample], num_ranks: int, unit_of: Callable[[Sample], str]) -> list[list[int]]:
    """Assign units (groups, rollouts or samples), longest first, each to the rank with the fewest tokens.

    The largest number of tokens on a rank is then at most 4/3 of its minimum over all assignments (Graham).
    """
    units: dict[Hashable, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(unit_of(sample) or index, []).append(index)
    lengths = {unit: sum(len(samples[index].token_ids) for index in members) for unit, members in units.items()}
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    heap = [(0, rank) for rank in range(num_ranks)]
    for unit in sorted(units, key=lambda unit: -lengths[unit]):
        load, rank = heapq.heappop(heap)
        ranks[rank] += units[unit]
        heapq.heappush(heap, (load + lengths[unit], rank))
    return [sorted(indices) for indices in ranks]
