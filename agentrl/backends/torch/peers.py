"""Exchanges between the processes that train one model, in each pass over a mini-batch."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

SampleOutputs: TypeAlias = dict[str, dict[int, Tensor]]
"""Name of an output -> index of a sample -> the values of its trained tokens."""


class Peers:
    """The process has no peers: nothing is exchanged. For several processes, see `backends.fsdp.ranks.ProcessPeers`."""

    size = 1

    def most(self, number: int) -> int:
        """Return the largest `number` of all processes. Every process must call this."""
        return number

    def gathered(self, outputs: SampleOutputs) -> SampleOutputs:
        """Return the outputs of the samples of all processes. Every process must call this."""
        return outputs


ALONE = Peers()


class SequencePeers:
    """The process computes all positions of its samples, so nothing is exchanged; see `fsdp.sequence.SequenceGroup`.

    Axes: M packed tokens, a multiple of `size`; H heads; D head size; N trained tokens. "Own" means: of this process.

    Attributes:
        size: number of processes that compute the same samples.
        index: number of this process among these processes, from 0; it computes slice `index` of the positions.
    """

    size = 1
    index = 0

    def all_positions(self, states_MHD: Tensor) -> Tensor:
        """Exchange states: all heads, own positions, [M / size, H, D] -> own heads, all positions, [M, H / size, D]."""
        return states_MHD

    def all_heads(self, states_MHD: Tensor) -> Tensor:
        """Exchange states: own heads, all positions, [M, H / size, D] -> all heads, own positions, [M / size, H, D]."""
        return states_MHD

    def every_position(self, values: Tensor) -> Tensor:
        """Return values of all positions, [M, ...]; `values`: own positions, [M / size, ...]. Without gradients."""
        return values

    def joined(self, values: Tensor, own_N: Tensor) -> Tensor:
        """Return the values of all processes, [N]; `own_N` is true for the tokens of this process's `values`."""
        return values


ALL_POSITIONS = SequencePeers()
