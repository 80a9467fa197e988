"""The garbage collector while rollouts run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MIN_YOUNG = 20_000
"""Objects made before the collector looks at the young ones, in place of Python's 700."""

_num_running = 0
_before = (0, 0, 0)


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Look for garbage less often: rollouts are many small objects that all live, beside a model's and a library's.

    A full collection looks at every object of the process. With Python's own thresholds that took a fifth of a turn's
    time at 100 turns. Whoever has switched the collector off, or made it rarer, is left alone.
    """
    global _num_running, _before
    if not _num_running:
        _before = gc.get_threshold()
        if 0 < _before[0] < MIN_YOUNG:
            gc.set_threshold(MIN_YOUNG, *_before[1:])
    _num_running += 1
    try:
        yield
    finally:
        _num_running -= 1
        if not _num_running:
            gc.set_threshold(*_before)
