"""How long things took, and how durations are spread."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class Timer:
    """Adds up seconds by name.

    >>> timer = Timer()
    >>> with timer.timed("collect"):
    ...     pass
    >>> list(timer.take())
    ['timing_s/collect']
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count what happens inside, also when it fails."""
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - start

    def take(self) -> dict[str, float]:
        """Metrics `timing_s/<name>` since the last call."""
        taken = {f"timing_s/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of 100 lie, interpolated linearly (numpy's default); NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
