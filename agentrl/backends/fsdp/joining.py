"""Find the ranks (processes) of a run, for backends that need a process group."""

from __future__ import annotations

from functools import cache

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from agentrl.backends.fsdp.ranks import Ranks, check_shared_folder, group_backend, joined
from agentrl.config.rules.unused import wrong
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError, Kind


def ranks_of_run(config: RunConfig) -> Ranks:
    """Return the ranks that this process has joined.

    Raises:
        ConfigError: the number of ranks differs from the configuration, or the ranks do not share the run's folder.
    """
    ranks, size = joined(), config.trainer.num_processes
    if ranks is None or ranks.size != size:
        found = "one process runs" if ranks is None else f"{ranks.size} processes run"
        text = f"{found}: start the run with `agentrl train` or `torchrun --nproc-per-node {size} -m agentrl train`"
        raise ConfigError(wrong("trainer.n_gpus_per_node", text, Kind.CONFLICT, value=size))
    check_shared_folder(ranks, config.trainer.run_dir)
    return ranks


@cache
def only_rank() -> Ranks:
    """Return the ranks of a single-process run whose backend needs a process group."""
    if not dist.is_initialized():
        dist.init_process_group(group_backend(), store=HashStore(), rank=0, world_size=1)
    return Ranks()
