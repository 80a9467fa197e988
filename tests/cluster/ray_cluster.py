"""A Ray cluster of several nodes on this machine, for tests; as a program it serves commands from stdin."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all listeners on 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_AUTH_MODE": "token",
}


@dataclass(frozen=True)
class RayCluster:
    """A cluster, with the environment in which commands can connect to it."""

    address: str
    env: dict[str, str]
    process: subprocess.Popen[str]

    def ask(self, command: str) -> str:
        assert self.process.stdin
        assert self.process.stdout
        print(command, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def kill(self, number: int) -> None:
        """Kill a node with all its processes."""
        assert self.ask(f"kill {number}") == "done"

    def add(self, resources: dict[str, float]) -> None:
        assert self.ask(f"add {json.dumps(resources)}") == "done"


@contextmanager
def ray_cluster(*nodes: dict[str, float]) -> Iterator[RayCluster]:
    """Start one node per dictionary of resources; the first is the head."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # a short path: sockets are in it
    token = folder / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    env = {**os.environ, **LOOPBACK, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(folder)}
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(nodes)]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            cluster = RayCluster("", env, process)
            yield RayCluster(cluster.ask("address"), env, process)
        finally:
            assert process.stdin
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            for left in processes_of(folder):
                os.kill(left, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Processes of the cluster in a folder, and what they started."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"RAY_TMPDIR={folder}\0".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def ancestors(process: int) -> list[int]:
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


def raylet(node: Any) -> int:  # Any: a node of Ray's test cluster
    return int(node.all_processes["raylet"][0].process.pid)


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes = []

    def add(resources: dict[str, float]) -> None:
        cpus = resources.pop("CPU")
        options = {"include_dashboard": False} if not nodes else {}
        nodes.append(
            cluster.add_node(num_cpus=cpus, resources=resources, object_store_memory=80 * 2**20, num_gpus=0, **options)
        )

    for resources in json.loads(sys.argv[1]):
        add(resources)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "address":
            print(cluster.address, flush=True)
            continue
        if word == "node":
            print(next(number for number, node in enumerate(nodes) if raylet(node) in ancestors(int(rest))), flush=True)
            continue
        if word == "kill":
            cluster.remove_node(nodes[int(rest)], allow_graceful=False)
        else:
            add(json.loads(rest))
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
