"""What a run asks of a cluster, and which demands are refused."""

from __future__ import annotations

import pytest

from agentrl.cluster.placement import Demands, check, demands_of, in_order, num_servers
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

NODE = {"CPU": 16.0, "GPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0}


def config(**sections: dict[str, object]) -> RunConfig:
    trainer = {"nnodes": 2, "n_gpus_per_node": 8}
    return RunConfig.model_validate({"model": {"path": "m"}, "trainer": trainer, **sections})


def test_each_node_gets_one_bundle_with_all_its_devices():
    asked = demands_of(config(cluster={"trainer_resources": {"h100": 8}, "cpus_per_process": 2}), with_gpus=True)
    assert asked == Demands([{"CPU": 16, "GPU": 8, "h100": 8}] * 2, [])


@pytest.mark.parametrize(("with_gpus", "device"), [(False, "auto"), (True, "cpu")])
def test_processes_on_the_cpu_ask_for_no_gpu(with_gpus, device):
    assert demands_of(config(actor={"device": device}), with_gpus=with_gpus).nodes == [{"CPU": 8}] * 2


def test_a_server_asks_for_the_gpus_of_its_ranks():
    sglang = {"num_replicas": 3, "server_args": {"--tp-size": 2, "pp_size": 2}}
    asked = demands_of(config(rollout={"engine": "sglang", "sglang": sglang}), with_gpus=True)
    assert asked.servers == [{"CPU": 1, "GPU": 4}] * 3


def test_servers_of_the_user_ask_for_nothing():
    rollout = {"engine": "sglang", "sglang": {"urls": ["http://a:1"]}}
    assert num_servers(config(rollout=rollout)) == num_servers(config()) == 0


def test_tool_workers_ask_for_their_own_resources():
    asked = {"num_tool_workers": 3, "cpus_per_tool_worker": 4, "tool_worker_resources": {"tools": 1}}
    demands = demands_of(config(cluster=asked), with_gpus=True)
    assert demands.tool_workers == [{"CPU": 4, "tools": 1}] * 3
    assert refused(demands, NODE, NODE)[0] == "cluster.num_tool_workers"
    assert refused(demands, NODE, NODE, {"CPU": 16, "tools": 3}) == []


def refused(demands: Demands, *nodes: dict[str, float]) -> list[str]:
    try:
        check(demands, {f"10.0.0.{number}": node for number, node in enumerate(nodes)})
    except ConfigError as error:
        return [problem.key for problem in error.problems]
    return []


def test_all_impossible_demands_are_listed_together():
    demands = Demands([{"CPU": 1, "GPU": 8}] * 3, [{"CPU": 1, "GPU": 16}])
    assert refused(demands, NODE, NODE) == ["trainer.nnodes", "rollout.sglang.num_replicas", "", ""]


def test_pools_that_fit_one_by_one_but_not_together_are_refused():
    demands = Demands([{"CPU": 1, "GPU": 8}] * 2, [{"CPU": 1, "GPU": 1}])
    assert refused(demands, NODE, NODE) == ["", ""]
    assert refused(demands, NODE, NODE, NODE) == []


@pytest.mark.parametrize(
    ("nodes", "servers", "order"),
    [
        ({}, {}, ["nodes", "servers"]),
        ({"h100": 8}, {}, ["nodes", "servers"]),
        ({}, {"rollout": 1}, ["servers", "nodes"]),
        ({"h100": 8}, {"rollout": 1}, ["nodes", "servers"]),
    ],
)
def test_bundles_with_custom_resources_are_reserved_first(nodes, servers, order):
    assert [*in_order(Demands([{"CPU": 1, **nodes}], [{"CPU": 1, **servers}]))] == order


def test_a_run_without_servers_reserves_only_nodes():
    assert [*in_order(Demands([{"CPU": 1}], []))] == ["nodes"]


def test_message_shows_what_each_node_has():
    with pytest.raises(ConfigError, match=r"the cluster has a: 16 CPU, 8 GPU"):
        check(Demands([{"CPU": 1, "h100": 1}], []), {"a": {**NODE, "CPU_group_0_4f": 1.0}})
