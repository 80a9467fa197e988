"""One process of a training run on several devices: `python -m agentrl.cli.ranks.run CONFIG`."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from agentrl.backends.fsdp.ranks import LOST_PEER_STATUS, LostPeerError, join, serve
from agentrl.cli.main import finish
from agentrl.cluster.launch import POOLS, launch
from agentrl.concurrency.signals import leave
from agentrl.config import RunConfig
from agentrl.config.rules.unused import wrong
from agentrl.errors import ConfigError


def train_on_ranks(config: RunConfig) -> int:
    """Start one process per device and train. In a process that already has a rank (torchrun), run that rank.

    Returns:
        The exit status.

    Raises:
        ConfigError: there are fewer GPUs than processes.
    """
    if "RANK" in os.environ:
        return _take_part(config)
    if config.uses_ray:
        from agentrl.cluster.nodes import train_on_nodes  # imports Ray

        return train_on_nodes(config)
    size = config.trainer.n_gpus_per_node
    if 0 < (num_gpus := torch.cuda.device_count()) < size and config.actor.device != "cpu":
        raise ConfigError(wrong("trainer.n_gpus_per_node", f"but this node has {num_gpus} GPUs", value=size))
    with tempfile.NamedTemporaryFile(prefix="agentrl-config-") as file:
        file.write(pickle.dumps(config))
        file.flush()
        return launch([sys.executable, "-m", "agentrl.cli.ranks.run", file.name], size, config.trainer.max_restarts)


def main() -> int:
    """Run one rank with the configuration in a file; return the exit status."""
    if os.getsid(0) != os.getpid():
        os.setsid()  # so Ctrl-C reaches only the launcher, which signals rank 0
    if os.environ["RANK"] != "0":
        return serve()
    config: RunConfig = pickle.loads(Path(sys.argv[1]).read_bytes())
    # imports Ray, which installs a SIGTERM handler; `finish` must come later, because it replaces this handler
    _pools()
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"resume_mode": "auto"})})
    return finish(lambda: _ended_with_peers(config))


def _ended_with_peers(config: RunConfig) -> int:
    try:
        return _take_part(config)
    except LostPeerError as error:
        print(f"agentrl: error: {error}", file=sys.stderr)
        return LOST_PEER_STATUS


def _take_part(config: RunConfig) -> int:
    """Train if this is rank 0. On another rank, run the functions that rank 0 calls."""
    if os.environ["RANK"] != "0":
        return serve()
    from agentrl.trainer.run import run_training  # imports transformers

    ranks = join()
    try:
        with _pools():
            run_training(config)
    finally:
        ranks.close()
    return 0


def _pools() -> AbstractContextManager[None]:
    if POOLS not in os.environ:
        return nullcontext()
    from agentrl.cluster.pools import pools_of_run  # imports Ray

    return pools_of_run()


if __name__ == "__main__":
    leave(main())
