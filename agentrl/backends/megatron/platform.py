"""The platform of megatron-core: CUDA, or the CPU.

With CUDA, megatron-core runs unchanged. On the CPU, its device calls are redirected. gloo cannot gather or
reduce-scatter parts of different sizes, so both are built from gloo's all-to-all. The arithmetic of layers is not
replaced.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ParamSpec, TypeVar

import torch

from agentrl.errors import ConfigError, Kind

Options = ParamSpec("Options")
Result = TypeVar("Result")
SUPPORTED = "0.19.2"
"""The only supported version of megatron-core, because the redirection depends on its device calls."""

_ready: list[bool] = []  # whether the CPU is used; empty before `prepare`


def prepare() -> None:
    """Import megatron-core for this machine. Call this before other code imports megatron-core.

    Raises:
        ConfigError: megatron-core is not installed, or the version is not supported.
    """
    if _ready:
        return
    check_version()
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling for the CPU takes longer than a small run
    for name in ("megatron", "torch.utils.cpp_extension"):  # they warn about missing or deprecated packages
        logging.getLogger(name).setLevel(logging.ERROR)
    with quiet_imports():
        import megatron.core.optimizer  # noqa: F401  # takes seconds

        if on_cpu:
            from agentrl.backends.megatron.cpu_devices import redirect_calls  # imports megatron-core

            redirect_calls()
    _name_as_in_torch()
    _ready.append(on_cpu)


def _name_as_in_torch() -> None:
    """Make pickled tensors refer to torch's load function, not to megatron-core's replacement of this function.

    A process without megatron-core could not import the replacement.
    """
    loads: Any = torch.storage._load_from_bytes  # Any: megatron-core's function
    loads.__module__, loads.__qualname__ = "torch.storage", "_load_from_bytes"


@contextmanager
def quiet_imports() -> Iterator[None]:
    """Hide warnings about accelerators that are not installed, while modules of megatron-core are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_version() -> None:
    """Check the installed version of megatron-core.

    Raises:
        ConfigError: megatron-core is not installed, or the version is not supported.
    """
    key, value = "actor.backend", "`actor.backend=megatron`"
    try:
        found = version("megatron-core")
    except PackageNotFoundError:
        text = f"{value} needs megatron-core {SUPPORTED}: install `agentrl-train[megatron]` on Python 3.12 or later"
        raise ConfigError.at(key, Kind.NOT_FOUND, text) from None
    if found != SUPPORTED:
        text = f"{value} needs megatron-core {SUPPORTED}, but {found} is installed"
        raise ConfigError.at(key, Kind.NOT_SUPPORTED, text)


@contextmanager
def on_device() -> Iterator[None]:
    """Context in which every thread must make its calls of megatron-core."""
    if not _ready:
        raise RuntimeError("prepare() was not called")
    with warnings.catch_warnings(), _device():
        warnings.filterwarnings("ignore", module=r"(megatron|torch)\.")  # warnings about code inside megatron-core
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        yield


def _device() -> AbstractContextManager[object]:
    if not _ready[0]:
        return nullcontext()
    from agentrl.backends.megatron.cpu_devices import OnCpu

    return OnCpu()


def runs_on_device(function: Callable[Options, Result]) -> Callable[Options, Result]:
    """Run the function inside `on_device`."""

    @wraps(function)
    def called(*args: Options.args, **kwargs: Options.kwargs) -> Result:
        with on_device():
            return function(*args, **kwargs)

    return called
