"""Measure how many saved rollouts are read per second on one core, for several selections of columns.

    python benchmarks/store_read.py outputs/quickstart/rl

The time is CPU time of the complete process. The script prints the best and the worst of several passes over all steps.
The garbage collector has the same settings as in a replay.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from pathlib import Path

from agentrl.replay.rescore.scoring import COLUMNS
from agentrl.rollouts.gc_tuning import fewer_collections
from agentrl.store import TrajectoryStore

NUM_REPEATS = 5
READ: dict[str, Collection[str] | None] = {
    "everything": None,
    "what rescoring reads": COLUMNS,
    "the same, messages in place of tokens": [*COLUMNS[:-1], "trajectories.messages"],
    "messages only": ["trajectories.messages"],
    "rewards only": ["rewards"],
}


def seconds(store: TrajectoryStore, columns: Collection[str] | None) -> float:
    """Return the CPU seconds of one pass."""
    start = time.process_time()
    for _ in store.scan(columns=columns):
        pass
    return time.process_time() - start


def measure(run: Path) -> None:
    store = TrajectoryStore(run / "trajectories/train")
    rollouts = list(store.scan())
    turns = sum(trajectory.num_turns for one in rollouts for trajectory in one.rollout.trajectories) / len(rollouts)
    print(f"{len(rollouts)} rollouts, {turns:.1f} turns each")
    num_rollouts = len(rollouts)
    del rollouts
    with fewer_collections():
        for name, columns in READ.items():
            times = sorted(seconds(store, columns) for _ in range(NUM_REPEATS))
            best, worst = num_rollouts / times[0], num_rollouts / times[-1]
            print(f"{name}: {best:,.0f} rollouts/s a core ({worst:,.0f} in the slowest of {NUM_REPEATS})")


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
