"""The other ranks of tests: `python serve_ranks.py`, with their number and the first rank in the environment."""

from __future__ import annotations

import os
import sys

import torch

from agentrl.backends.fsdp.ranks import serve


def serve_ranks() -> int:
    """Serve all ranks but 0. They are forks, so the imports happen once; returns 0 if all ended well."""
    torch.set_num_threads(1)
    forks = []
    for rank in range(2, int(os.environ["WORLD_SIZE"])):
        if not (fork := os.fork()):
            os.environ["RANK"] = str(rank)
            os._exit(serve())
        forks.append(fork)
    return serve() or int(any(os.waitpid(fork, 0)[1] for fork in forks))


if __name__ == "__main__":
    sys.exit(serve_ranks())
