"""FlexAttention on a CPU, for tests: torch computes it there without compiling, and refuses only its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.nn.attention.flex_attention as flex_module

from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.torch import forward


@contextmanager
def flex_on_cpu() -> Iterator[None]:
    """Models that load inside the block use FlexAttention on a CPU. Each block compiles its own functions."""
    torch._dynamo.reset()
    with (
        patch.object(forward, "FLEX_DEVICES", {"cpu"}),
        patch.object(flex_module, "_validate_device", lambda *states: None),
        patch.object(flex_module, "_warn_once", lambda *message, **more: None),  # it warns that it is not compiled
    ):
        yield


_CONTEXT = -2
"""Number of the context among the objects that a rank holds."""


def begin_on_rank(ranks: Ranks) -> None:
    """Enter `flex_on_cpu` on this rank."""
    ranks.held[_CONTEXT] = flex_on_cpu()
    ranks.held[_CONTEXT].__enter__()


def end_on_rank(ranks: Ranks) -> None:
    """Leave it."""
    ranks.held.pop(_CONTEXT).__exit__(None, None, None)


@contextmanager
def flex_on_all(ranks: Ranks) -> Iterator[None]:
    """`flex_on_cpu` on all ranks."""
    ranks.each(begin_on_rank, [()] * ranks.size)
    try:
        yield
    finally:
        ranks.each(end_on_rank, [()] * ranks.size)
