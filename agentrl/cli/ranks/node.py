"""Starts the ranks of one node in a run on several nodes: `python -m agentrl.cli.ranks.node FILE`."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from pathlib import Path

from agentrl.cluster.launch import Node, launch
from agentrl.config import RunConfig

POLL_S = 0.5


def main() -> int:
    """Start the ranks of this node, as described in a file (configuration and node). Return the exit status."""
    file = Path(sys.argv[1])
    config: RunConfig
    node: Node
    config, node = pickle.loads(file.read_bytes())
    file.write_bytes(pickle.dumps(config))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        return launch(
            [sys.executable, "-m", "agentrl.cli.ranks.run", str(file)], config.trainer.n_gpus_per_node, node=node
        )
    finally:
        file.unlink()


def _end_with(parent: int) -> None:
    """End this process, and with it the ranks, when the Ray actor that started this process has ended."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
