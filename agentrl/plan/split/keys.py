"""The keys of `agentrl train` for a division of the devices, for a user to paste."""

from __future__ import annotations

from agentrl.config.run import RunConfig
from agentrl.plan.layout import Layout, Servers

_USUAL = {"tp_size": 1, "pp_size": 1, "dp_size": 1, "enable_dp_attention": False, "base_gpu_id": 0}
"""Sizes of a server and their defaults. Hydra merges mappings, so a size in the configuration is kept unless it is
overwritten."""
_MEGATRON = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
)


def training_keys(layout: Layout, config: RunConfig, per_node: int) -> dict[str, object]:
    """Return the keys of a training layout whose values differ from the configuration."""
    keys = device_keys(layout.devices, config, per_node)
    if layout.kind == "megatron":
        sizes = {f"actor.megatron.{name}": getattr(layout.megatron, name) for name in _MEGATRON}
    else:
        sizes = {"actor.ulysses_sequence_parallel_size": layout.ulysses, "actor.fsdp_size": None}
    return keys | _changed(sizes, config)


def device_keys(devices: int, config: RunConfig, per_node: int) -> dict[str, object]:
    """Return the keys that put `devices` training devices on as few nodes as possible.

    Keys that have the same value in the configuration are left out.
    """
    nodes = -(-devices // per_node)
    return _changed({"trainer.n_gpus_per_node": devices // nodes, "trainer.nnodes": nodes}, config)


def server_keys(servers: Servers, config: RunConfig, layout: Layout, per_node: int) -> dict[str, object]:
    """Return the keys of SGLang servers whose values differ from the configuration.

    If all devices are on one node, servers use the GPUs after the training GPUs. For servers that run already, the keys
    contain only the sizes of the servers. The user must list as many addresses in `rollout.sglang.urls` as there are
    servers.
    """
    sglang = config.rollout.sglang
    args = {key: _USUAL.get(key, value) for key, value in sglang.options.items()}
    args |= {"tp_size": servers.tensor} if servers.tensor > 1 or sglang.urls else {}
    args |= {"dp_size": servers.data, "enable_dp_attention": True} if servers.data > 1 else {}
    one_node = layout.devices + servers.devices <= per_node and not sglang.urls
    args |= {"base_gpu_id": layout.devices} if one_node and not servers.colocate else {}
    keys: dict[str, object] = {"rollout.engine": "sglang", "rollout.sglang.server_args": args}
    if not sglang.urls:
        keys |= {"rollout.sglang.num_replicas": servers.replicas, "rollout.sglang.colocate": servers.colocate}
    return _changed(keys, config)


def _changed(keys: dict[str, object], config: RunConfig) -> dict[str, object]:
    return {key: value for key, value in keys.items() if _value(config, key) != value}


def _value(config: RunConfig, key: str) -> object:
    found: object = config
    for name in key.split("."):
        found = getattr(found, name)
    return found
