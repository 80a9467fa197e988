"""Splits the cases of a test between `make test` and `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(n: int, cases: Iterable[Any]) -> list[Any]:  # Any: the arguments of a test
    """For `parametrize`: the first and then every n-th case run in `make test`; the others are marked slow."""
    return [
        case
        if number % n == 0
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
