"""Reserve the resources of a run on the nodes of a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from agentrl.capabilities import engine_spec
from agentrl.config import RunConfig
from agentrl.config.rules.unused import wrong
from agentrl.engines.sglang.servers.command import num_gpus
from agentrl.errors import ConfigError, Kind, Problem

Bundle: TypeAlias = dict[str, float]
"""Resources that are reserved together on one node: Ray's name (CPU, GPU or a custom resource) -> amount."""
STRATEGIES = {"nodes": "STRICT_SPREAD", "servers": "PACK", "tool_workers": "SPREAD"}
"""Pool (a field of `Demands`) -> strategy with which Ray distributes the bundles of the pool over nodes, if there are
several bundles."""


@dataclass(frozen=True, slots=True)
class Demands:
    """Resources that a run needs from the cluster.

    Attributes:
        nodes: one bundle for each training node.
        servers: one bundle for each SGLang server that the run starts.
        tool_workers: one bundle for each worker that runs processes of tools and rewards.
    """

    nodes: list[Bundle]
    servers: list[Bundle]
    tool_workers: list[Bundle] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Placement:
    """Reserved resources.

    Attributes:
        nodes: the placement group of the training nodes, one bundle each.
        pools: the other placement groups, by name: servers and tool_workers, if the run has them.
    """

    nodes: PlacementGroup
    pools: dict[str, PlacementGroup]


def demands_of(config: RunConfig, *, with_gpus: bool) -> Demands:
    """Return the resources that a run needs.

    Args:
        with_gpus: whether the cluster has GPUs.
    """
    trainer, cluster = config.trainer, config.cluster
    size = trainer.n_gpus_per_node
    gpus = {"GPU": float(size)} if with_gpus and config.actor.device != "cpu" else {}
    node = {"CPU": size * cluster.cpus_per_process, **gpus, **cluster.trainer_resources}
    server = {"CPU": cluster.cpus_per_server, **_gpus_of_a_server(config, with_gpus), **cluster.rollout_resources}
    worker = {"CPU": cluster.cpus_per_tool_worker, **cluster.tool_worker_resources}
    return Demands([node] * trainer.nnodes, [server] * num_servers(config), [worker] * cluster.num_tool_workers)


def num_servers(config: RunConfig) -> int:
    """Return the number of SGLang servers that the run starts."""
    starts = "sglang" in engine_spec(config.rollout.engine).options and not config.rollout.sglang.urls
    return config.rollout.sglang.num_replicas if starts else 0


def _gpus_of_a_server(config: RunConfig, with_gpus: bool) -> Bundle:
    options = config.rollout.sglang.options
    if not with_gpus or options.get("device") == "cpu":
        return {}
    return {"GPU": float(num_gpus(options))}


def check(demands: Demands, nodes: Mapping[str, Bundle]) -> None:
    """Refuse demands that the cluster can never meet, even if nothing else runs on it.

    Args:
        nodes: address of each node -> all its resources.

    Raises:
        ConfigError: demands are too high; the message lists them, and the resources of the nodes.
    """
    if problems := [*_too_high(demands, nodes)]:
        there = "; ".join(f"{name}: {_shown(own)}" for name, own in nodes.items())
        raise ConfigError(*problems, Problem("", Kind.OTHER, f"the cluster has {there}"))


def _too_high(demands: Demands, nodes: Mapping[str, Bundle]) -> Iterator[Problem]:
    room = sum(min(1, _fits(demands.nodes[0], own)) for own in nodes.values())
    if room < (size := len(demands.nodes)):
        text = f"needs {size} nodes with {_shown(demands.nodes[0])}, and there are {room}"
        yield wrong("trainer.nnodes", text, value=size)
    pools = {"rollout.sglang.num_replicas": demands.servers, "cluster.num_tool_workers": demands.tool_workers}
    for key, bundles in pools.items():
        room = sum(_fits(bundle, own) for bundle in bundles[:1] for own in nodes.values())
        if room < (size := len(bundles)):
            text = f"needs {size} times {_shown(bundles[0])}, and there is room for {room}"
            yield wrong(key, text, value=size)
    for name in ("CPU", "GPU"):
        there = sum(own.get(name, 0) for own in nodes.values())
        asked = sum(bundle.get(name, 0) for bundle in demands.nodes + demands.servers + demands.tool_workers)
        if asked > there:
            yield Problem("", Kind.OTHER, f"all pools together need {asked:g} {name}, and there are {there:g}")


def _fits(bundle: Bundle, own: Bundle) -> int:
    return int(min(own.get(name, 0) // number for name, number in bundle.items()))


def _shown(resources: Bundle) -> str:
    names = [name for name in resources if not _OF_RAY.match(name)]
    return ", ".join(f"{resources[name]:g} {name}" for name in sorted(names))


_OF_RAY = re.compile(r"(memory|object_store_memory)$|(node|accelerator_type):|\w+_group_|bundle_group")
"""Resources that Ray adds by itself."""


@contextmanager
def placed(config: RunConfig) -> Iterator[Placement]:
    """Reserve the resources of a run on the connected cluster.

    Raises:
        ConfigError: the cluster lacks the resources, or they are in use for longer than `cluster.wait_s`.
    """
    nodes = nodes_there()
    demands = demands_of(config, with_gpus=any(own.get("GPU") for own in nodes.values()))
    check(demands, nodes)
    groups: dict[str, PlacementGroup] = {}
    try:
        for name, bundles in in_order(demands).items():
            groups[name] = placement_group(bundles, STRATEGIES[name] if len(bundles) > 1 else "PACK")
            if not groups[name].wait(config.cluster.wait_s):
                raise ConfigError(_in_use(config, bundles))
        yield Placement(groups["nodes"], {name: group for name, group in groups.items() if name != "nodes"})
    finally:
        for group in groups.values():
            remove_placement_group(group)


def in_order(demands: Demands) -> dict[str, list[Bundle]]:
    """Return the bundles of each pool in the order in which they are reserved.

    Pools with custom resources come first, because other pools might take the CPUs of the nodes that have these
    resources. The other pools follow in this order: training nodes (they need the largest part of a node), then
    servers, then tool workers.
    """
    pools = {"nodes": demands.nodes, "servers": demands.servers, "tool_workers": demands.tool_workers}
    asked = {name: bundles for name, bundles in pools.items() if bundles}
    return dict(sorted(asked.items(), key=lambda pool: not pool[1][0].keys() - {"CPU", "GPU"}))


def nodes_there() -> dict[str, Bundle]:
    """Return a dictionary: address and shortened id of each live node of the cluster -> resources of the node."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has no type for it
    alive = [node for node in nodes if node["Alive"]]
    return {f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})": node["Resources"] for node in alive}


def _in_use(config: RunConfig, bundles: Sequence[Bundle]) -> Problem:
    free = _shown(ray.available_resources())  # type: ignore[no-untyped-call]  # Ray has no type for it
    asked = " and ".join(_shown(bundle) for bundle in bundles)
    text = f"has passed: the run needs {asked}, but other jobs use part of it; free in the whole cluster: {free}"
    return wrong("cluster.wait_s", text, Kind.OTHER, value=config.cluster.wait_s)
