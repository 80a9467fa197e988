"""Start one process per device on this node and watch them, with the agent of torch.distributed.elastic."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from agentrl.backends.fsdp.ranks import SIGNS, STORE, beat_file

POOLS = "AGENTRL_POOLS"
"""Environment variable with JSON: the address of the Ray cluster, and the placement-group id of each of
`Placement.pools`."""
SILENT_S = 30.0
"""Seconds without a sign of life (see `beat_file`) after which a rank is killed."""
CHECK_S = 1.0
"""Maximum seconds that one check adds to the silence of a rank (see `Silence`). If more time has passed since the last
check, this machine was suspended or busy; the additional time does not count."""
CLOSE_S = 10
"""Seconds that ranks may take to end after another rank failed."""


@dataclass(frozen=True, slots=True)
class Node:
    """One of several nodes of a run.

    Attributes:
        rank: number of this node.
        size: number of nodes.
        endpoint: address:port on node 0, through which the ranks find each other.
    """

    rank: int
    size: int
    endpoint: str


def launch(command: Sequence[str], num_ranks: int, max_restarts: int = 0, node: Node | None = None) -> int:
    """Run `command` in `num_ranks` processes until all end; return an exit status.

    The status is 0 if no rank failed, the exit status of rank 0 if rank 0 failed first, and 1 if another rank failed
    first or if a signal killed rank 0.

    If a rank fails, the other ranks are stopped, and all ranks are restarted, up to `max_restarts` times. Ctrl-C is
    passed on to rank 0, which ends the run.

    Args:
        node: this node, if ranks run on several nodes. Each node then calls this function, with `max_restarts` 0.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-ranks-") as folder:
        store = {} if node else {STORE: str(Path(folder) / "store")}
        os.environ |= {**store, SIGNS: folder, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGHUP,SIGQUIT"}
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        meeting = _on_several_nodes(node) if node else _on_one_node(folder)
        agent = _Agent(_spec(command, num_ranks, max_restarts, meeting), Path(folder))
        with _interrupts_passed_on(agent):
            result = agent.run()
    return agent.status if result.is_failed() else 0


def _on_one_node(folder: str) -> RendezvousParameters:
    file = str(Path(folder) / "rendezvous")
    return RendezvousParameters("c10d", file, run_id="agentrl", min_nodes=1, max_nodes=1, store_type="file")


def _on_several_nodes(node: Node) -> RendezvousParameters:
    size = node.size
    return RendezvousParameters("static", node.endpoint, "agentrl", min_nodes=size, max_nodes=size, rank=node.rank)


def _spec(command: Sequence[str], num_ranks: int, max_restarts: int, meeting: RendezvousParameters) -> WorkerSpec:
    return WorkerSpec(
        role="rank",
        local_world_size=num_ranks,
        entrypoint=command[0],
        args=tuple(command[1:]),
        rdzv_handler=get_rendezvous_handler(meeting),
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )


class _Agent(LocalElasticAgent):
    """Reports a killed rank before the other ranks fail as a consequence, and kills ranks that hang.

    Attributes:
        status: exit status of rank 0, or 1 if another rank failed first.
    """

    def __init__(self, spec: WorkerSpec, folder: Path) -> None:
        super().__init__(spec, DefaultLogsSpecs(log_dir=str(folder)), shutdown_timeout=CLOSE_S)
        self.status = 1
        self._silence = Silence()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        for rank, process in self._processes():
            self._check(rank, process)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            first = min(result.failures.values(), key=lambda failure: failure.timestamp)
            of_rank_0 = first.local_rank == 0 and not worker_group.group_rank
            self.status = first.exitcode if of_rank_0 and first.exitcode > 0 else 1
        return result

    def _check(self, rank: int, process: int) -> None:
        try:
            ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # the agent has already noticed the end of the process
            return
        if ended and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            _say(rank, process, f"was killed by {signal.Signals(ended.si_status).name}")
        elif not ended and (silent_s := self._silence.seconds(beat_file(rank, self._attempt()))) > SILENT_S:
            _say(rank, process, f"has shown no sign of life for {silent_s:.0f} s")
            os.kill(process, signal.SIGKILL)

    def _processes(self) -> list[tuple[int, int]]:
        workers = self.get_worker_group().workers
        return [(worker.global_rank, worker.id) for worker in workers if isinstance(worker.id, int)]

    def _attempt(self) -> int:
        return self.get_worker_group().spec.max_restarts - self._remaining_restarts

    def _exit_barrier(self) -> None:
        """Do not wait for other nodes: all ranks have left the process group together, or the run has failed."""

    def interrupt(self) -> None:
        """Send Ctrl-C to rank 0."""
        for rank, process in self._processes():
            if rank == 0:
                os.kill(process, signal.SIGINT)


class Silence:
    """Measures how long ranks have given no sign of life. Time in which this process was suspended does not count."""

    def __init__(self) -> None:
        # file -> (time of the last sign, silence until the last check, time of the last check)
        self._seen: dict[Path, tuple[float, float, float]] = {}

    def seconds(self, file: Path) -> float:
        """Return the seconds of silence of the rank that touches `file`; 0 if the rank has not created the file yet."""
        if not file.exists():
            return 0.0
        sign, now = file.stat().st_mtime, time.monotonic()
        last_sign, silent_s, checked = self._seen.get(file, (sign, 0.0, now))
        silent_s = silent_s + min(now - checked, CHECK_S) if sign == last_sign else 0.0
        self._seen[file] = sign, silent_s, now
        return silent_s


def _say(rank: int, process: int, what: str) -> None:
    print(f"agentrl: error: rank {rank} (process {process}) {what}", file=sys.stderr)


@contextmanager
def _interrupts_passed_on(agent: _Agent) -> Iterator[None]:
    earlier = signal.signal(signal.SIGINT, lambda *_: agent.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
