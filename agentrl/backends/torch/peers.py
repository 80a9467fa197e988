"""Exchanges between the processes that train one model, in each pass over a mini-batch."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

SampleOutputs: TypeAlias = dict[str, dict[int, Tensor]]
"""Name of an output -> index of a sample -> its values, [number of its trained tokens]."""


class Peers:
    """Peers of a process that trains alone. `backends.fsdp` has the class for several processes."""

    size = 1

    def most(self, number: int) -> int:
        """Return the largest `number` of all processes; each of them must call it."""
        return number

    def gathered(self, outputs: SampleOutputs) -> SampleOutputs:
        """Return the outputs of the samples of all processes; each of them must call it."""
        return outputs


ALONE = Peers()


class SequencePeers:
    """Peers of a process that computes all positions of its samples. `backends.fsdp` has the class for slices.

    Axes: M packed tokens, a multiple of `size`; H heads; D head size; N trained tokens.

    Attributes:
        size: number of processes that compute the same samples.
        index: number of this process among them; it computes the positions of slice `index`.
    """

    size = 1
    index = 0

    def all_positions(self, states_MHD: Tensor) -> Tensor:
        """Exchange own positions of all heads, [M / size, H, D], for all positions of own heads, [M, H / size, D]."""
        return states_MHD

    def all_heads(self, states_MHD: Tensor) -> Tensor:
        """Exchange all positions of own heads, [M, H / size, D], for own positions of all heads, [M / size, H, D]."""
        return states_MHD

    def joined(self, values: Tensor, own_N: Tensor) -> Tensor:
        """Return the values of all processes, [N]; `own_N` is true where the `values` of this process belong."""
        return values


ALL_POSITIONS = SequencePeers()
