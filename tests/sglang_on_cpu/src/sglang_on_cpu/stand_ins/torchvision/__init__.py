"""Stands in for torchvision, whose CPU wheels are not on PyPI: can be imported; missing functions raise when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.28.0"


def missing(module: str) -> Callable[[str], Callable[..., NoReturn]]:
    """A module's `__getattr__`."""

    def __getattr__(name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)

        def unavailable(*args: object, **kwargs: object) -> NoReturn:
            raise RuntimeError(f"{module}.{name}: this is a stand-in for torchvision")

        return unavailable

    return __getattr__


from torchvision import io as io  # noqa: E402  (they use `missing`)
from torchvision import transforms as transforms  # noqa: E402

__getattr__ = missing(__name__)
