"""Start a training run on the nodes of a Ray cluster, watch it, and restart it if a node fails."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError

from agentrl.backends.fsdp.ranks import LOST_PEER_STATUS
from agentrl.cluster.actors import Actor, actor_in
from agentrl.cluster.connection import connected
from agentrl.cluster.launch import CLOSE_S, POOLS, Node
from agentrl.cluster.placement import Placement, placed
from agentrl.cluster.processes import NodeProcess, Output
from agentrl.config import RunConfig
from agentrl.registry import child_path

NODE_PROGRAM = "agentrl.cli.ranks.node"
PASSED_ON = re.compile(
    r"(AGENTRL|HF|HUGGINGFACE|WANDB|MLFLOW|TRACKIO|NCCL|TORCH|SGLANG|TOKENIZERS)_\w+|OMP_NUM_THREADS|\w+_(API_KEY|TOKEN)"
)
"""Pattern for the names of the environment variables that are passed on to processes on other nodes."""


def train_on_nodes(config: RunConfig) -> int:
    """Train on the nodes of a cluster; return the exit status.

    Raises:
        ConfigError: the cluster does not answer, or does not have the resources.
    """
    with connected(config.cluster.address):
        for left in reversed(range(config.trainer.max_restarts + 1)):
            with placed(config) as placement, _started(config, placement) as run:
                status = run.watch()
            if status is not None:
                return status
            if left:
                print(f"starting again from the newest checkpoint; restarts left: {left - 1}", file=sys.stderr)
            config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"resume_mode": "auto"})})
    return 1


@contextmanager
def _started(config: RunConfig, placement: Placement) -> Iterator[_Run]:
    """Start one process on each node; at the end, kill all processes that still run."""
    size = config.trainer.nnodes
    actors = [actor_in(placement.nodes, rank, NodeProcess, max_concurrency=2) for rank in range(size)]
    places = ray.get([actor.place.remote() for actor in actors])
    endpoint = f"{places[0][0]}:{places[0][1]}"
    run = _Run(actors, [address for address, _ in places])
    environment = _environment(placement)
    try:
        for rank, actor in enumerate(actors):
            file = pickle.dumps((config, Node(rank, size, endpoint)))
            ray.get(actor.start.remote([NODE_PROGRAM], file, str(Path.cwd()), environment))
        with _signals_passed_on(run):
            yield run
    finally:
        run.kill()


def passed_on() -> dict[str, str]:
    """Return the environment variables of this process that are passed on to processes on other nodes."""
    return {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}


def _environment(placement: Placement) -> dict[str, str]:
    groups = {name: group.id.hex() for name, group in placement.pools.items()}
    cluster = {"address": ray.get_runtime_context().gcs_address, "groups": groups}
    return passed_on() | {"PYTHONPATH": child_path(), POOLS: json.dumps(cluster)}


class _Run:
    """The processes of one attempt to run the training, one per node. Each process starts the ranks of its node."""

    def __init__(self, actors: list[Actor], addresses: list[str]) -> None:
        self._actors, self._addresses = actors, addresses
        self._statuses: dict[int, int] = {}
        self._failed_at: float | None = None

    def watch(self) -> int | None:
        """Print the output of all nodes until their processes have ended.

        Returns:
            The exit status of the process on node 0; None if the run may start again. That is the case if node 0 was
            lost or its process ended with status 1 or `LOST_PEER_STATUS`, or if only other nodes failed.
        """
        reading = {self._read(rank): rank for rank in range(len(self._actors))}
        while reading and not self._overdue():
            for done in ray.wait([*reading], timeout=1.0)[0]:
                rank = reading.pop(done)
                if not self._has_ended(rank, done):
                    reading[self._read(rank)] = rank
        status = self._statuses.get(0, 1)
        failed_elsewhere = any(self._statuses.get(rank, 1) for rank in range(1, len(self._actors)))
        return None if status in (1, LOST_PEER_STATUS) or (failed_elsewhere and status == 0) else status

    def signal(self, number: int) -> None:
        """Send a signal to the processes of all nodes; Ctrl-C (SIGINT) only to node 0, whose rank 0 ends the run."""
        for actor in self._actors[: 1 if number == signal.SIGINT else None]:
            actor.signal.remote(number)

    def kill(self) -> None:
        """Kill all processes that still run."""
        for actor in self._actors:
            with suppress(RayActorError, TimeoutError):
                ray.get(actor.signal.remote(signal.SIGKILL), timeout=5)
            ray.kill(actor)

    def _read(self, rank: int) -> ObjectRef[Output]:
        return self._actors[rank].output.remote()  # type: ignore[no-any-return]  # see `Actor`

    def _has_ended(self, rank: int, done: ObjectRef[Output]) -> bool:
        """Print the output of a node; return whether its process has ended."""
        try:
            output = ray.get(done)
        except RayActorError:
            print(f"agentrl: error: node {rank} ({self._addresses[rank]}) was lost", file=sys.stderr)
            output = Output([], 1)
        for stream, piece in output.pieces:
            target = (sys.stdout if stream == 1 else sys.stderr).buffer
            target.write(piece)
            target.flush()
        if output.status is None:
            return False
        self._statuses[rank] = output.status
        if output.status:
            self._failed_at = self._failed_at or time.monotonic()
        return True

    def _overdue(self) -> bool:
        """Whether a node failed more than `CLOSE_S` seconds ago; the other nodes should have ended within this time."""
        return self._failed_at is not None and time.monotonic() - self._failed_at > CLOSE_S


@contextmanager
def _signals_passed_on(run: _Run) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = [signal.signal(number, lambda received, _: run.signal(received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)
