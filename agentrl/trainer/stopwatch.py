"""A stopwatch for the parts of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Adds up seconds by name until the next lap."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lap_started = clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a block."""
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[name] += self._clock() - started

    def around(self, name: str, part: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """The same part, timed."""

        async def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self(name):
                return await part(*args, **kwargs)

        return timed

    def lap(self) -> dict[str, float]:
        """`timing_s/<name>` since the last lap, and `timing_s/step` for the whole of it."""
        now = self._clock()
        laps = {f"timing_s/{name}": seconds for name, seconds in self._seconds.items()}
        laps["timing_s/step"] = now - self._lap_started
        self._seconds.clear()
        self._lap_started = now
        return laps
