"""Timer and percentiles of durations."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext


def unannotated(name: str) -> AbstractContextManager[None]:
    """Return a context manager that does nothing, for a timer without annotations."""
    return nullcontext()


class Timer:
    """Sums elapsed seconds by name. `annotate` returns a context manager for a timed block, such as a profiler range.

    >>> timer = Timer()
    >>> with timer.timed("collect"):
    ...     pass
    >>> list(timer.take())
    ['timing_s/collect']
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        annotate: Callable[[str], AbstractContextManager[None]] = unannotated,
    ) -> None:
        self._clock = clock
        self._annotate = annotate
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time the block, also if it raises an exception."""
        start = self._clock()
        try:
            with self._annotate(name):
                yield
        finally:
            self._seconds[name] += self._clock() - start

    def take(self) -> dict[str, float]:
        """Return the metrics `timing_s/<name>` since the last call."""
        taken = {f"timing_s/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile (0 to 100) with linear interpolation, numpy's default; NaN if there are no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
