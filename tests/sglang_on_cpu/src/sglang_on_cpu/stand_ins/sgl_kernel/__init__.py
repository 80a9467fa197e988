"""Stands in for sgl_kernel, whose wheels need CUDA: it can be imported, but its functions raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def unavailable(*args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{name} needs a GPU: this is a stand-in")

    return unavailable
