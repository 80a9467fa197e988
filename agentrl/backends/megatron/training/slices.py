"""Positions of a sample on each process of a context-parallel group.

Each sample is cut into 2 P pieces for P processes. Process p has the pieces p and 2 P - 1 - p, so that all processes
have the same number of causal (query, key) pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def owned_positions(length: int, num_processes: int) -> Tensor:
    """Return the positions of each process, [P, length / P]; with several processes, `length` is a multiple of 2 P.

    owned_positions(8, 2) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    if num_processes == 1:
        return torch.arange(length)[None]
    pieces = torch.arange(length).view(2 * num_processes, -1)
    return torch.stack([torch.cat([pieces[rank], pieces[-1 - rank]]) for rank in range(num_processes)])
