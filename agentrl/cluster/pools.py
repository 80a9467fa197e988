"""Reserved resources of a run on a Ray cluster: rank 0 starts SGLang servers, tool workers and rewards on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ray._raylet import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from agentrl.cluster.connection import connected
from agentrl.cluster.launch import POOLS
from agentrl.cluster.nodes import passed_on
from agentrl.cluster.servers import RemoteServer
from agentrl.cluster.tool_workers import ToolWorkers
from agentrl.concurrency import pool
from agentrl.config.rules.unused import wrong
from agentrl.engines.sglang.servers import place
from agentrl.errors import ConfigError, Kind


@contextmanager
def pools_of_run() -> Iterator[None]:
    """Make SGLang servers, tools and rewards that start inside the `with` block run on the resources reserved for them.

    Raises:
        ConfigError: the node of a tool worker does not have the working folder of this process.
    """
    given = json.loads(os.environ[POOLS])
    groups = {name: PlacementGroup(PlacementGroupID(bytes.fromhex(group))) for name, group in given["groups"].items()}
    if not groups:
        yield
        return
    with connected(given["address"]):
        if servers := groups.get("servers"):
            place.start_remotely(partial(RemoteServer, servers))
        if tools := groups.get("tool_workers"):
            workers = _tool_workers(tools)
            pool.start_remotely(workers.child, pool.PER_CPU * _num_cpus(tools))
        yield


def _tool_workers(group: PlacementGroup) -> ToolWorkers:
    try:
        return ToolWorkers(group, str(Path.cwd()), passed_on())
    except OSError as error:
        raise ConfigError(wrong("cluster.num_tool_workers", f"a worker cannot start: {error}", Kind.OTHER)) from None


def _num_cpus(group: PlacementGroup) -> int:
    return max(1, int(sum(bundle.get("CPU", 0) for bundle in group.bundle_specs)))
