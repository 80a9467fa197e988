"""Seconds of collective operations: a fixed time, plus the bytes over the slowest link (Thakur et al. 2005, ring).

For N processes and a result of B bytes in total, all-gather and reduce-scatter move (N - 1) / N x B over the link of
each process. An all-reduce moves twice as much. An all-to-all of B bytes per process moves (N - 1) / N x B.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.plan.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Link:
    """The slowest link among N processes. `bytes_per_s` is per process and direction."""

    num: int
    bytes_per_s: float
    latency_s: float

    def gather_s(self, num_bytes: float) -> float:
        """Return the seconds of an all-gather or a reduce-scatter of `num_bytes` in total."""
        if self.num == 1:
            return 0.0
        return self.latency_s + (self.num - 1) / self.num * num_bytes / self.bytes_per_s

    def reduce_s(self, num_bytes: float) -> float:
        """Return the seconds of an all-reduce of `num_bytes`."""
        if self.num == 1:
            return 0.0
        return self.latency_s + 2 * (self.num - 1) / self.num * num_bytes / self.bytes_per_s

    def exchange_s(self, num_bytes: float) -> float:
        """Return the seconds of an all-to-all in which each process sends `num_bytes`."""
        return self.gather_s(num_bytes)


def link_of(hardware: Hardware, num: int, stride: int = 1) -> Link:
    """Return the link among `num` processes whose device numbers are `stride` apart.

    Processes in one node use the link of the node. Processes in several nodes use the network, in which each process
    of a node has its own port.
    """
    if num * stride <= hardware.devices_per_node:
        return Link(num, 1e9 * hardware.link_gb_s, 1e-6 * hardware.link_latency_us)
    return Link(num, 1e9 * hardware.network_gb_s, 1e-6 * hardware.network_latency_us)
