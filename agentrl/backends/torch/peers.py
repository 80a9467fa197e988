"""What the processes that train one model together must agree on in each pass over a mini-batch."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

SampleOutputs: TypeAlias = dict[str, dict[int, Tensor]]
"""Name of an output -> index of a sample -> its values, [number of its trained tokens]."""


class Peers:
    """A process that trains alone. `backends.fsdp` has the one for several processes."""

    size = 1

    def most(self, number: int) -> int:
        """Return the largest `number` of all processes; each of them must call it."""
        return number

    def gathered(self, outputs: SampleOutputs) -> SampleOutputs:
        """Return the outputs of the samples of all processes; each of them must call it."""
        return outputs


ALONE = Peers()
