"""Cases of a test that are split between `make test` and `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, cases: Iterable[Any]) -> list[Any]:  # Any: whatever a test is given
    """For `parametrize`: the first and every n-th case after it; the others are slow."""
    return [
        case
        if number % n == 0
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
