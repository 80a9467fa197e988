"""Code that checks, in a running container, that the container isolates as required."""

from __future__ import annotations

from agentrl.sandboxes.docker.settings import ContainerSandbox

_PROBE = r"""
def at_most(limit, *paths):
    for path in paths:  # of version 2 and 1 of control groups
        try:
            return int(open("/sys/fs/cgroup/" + path).read()) <= limit
        except (OSError, ValueError):
            pass
    return False
checks["memory is limited"] = at_most(MEMORY, "memory.max", "memory/memory.limit_in_bytes")
checks["the number of processes is limited"] = at_most(PROCESSES, "pids.max", "pids/pids.max")
checks["the network is unreachable"] = NETWORK or no_network()
"""


def probe(settings: ContainerSandbox) -> str:
    """Return the code for `check_isolation`."""
    values = settings.memory_mb * 2**20, settings.max_processes, settings.network != "none"
    return f"MEMORY, PROCESSES, NETWORK = {values}\n{_PROBE}"
