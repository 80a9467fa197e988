"""Rules for options that the training backend does not support."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.capabilities import BACKEND_OPTIONS, BackendSpec, backend_spec, backends_with, can
from agentrl.config.base import Section
from agentrl.config.rules.megatron import has_layouts
from agentrl.config.rules.unused import every, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import Kind, Problem

SLICES = "ulysses_sequence_parallel_size"


def ignored_by_backend(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per option that the backend ignores."""
    spec = backend_spec(config.actor.backend)
    for need, where, section, option in _needs(config):
        if option == "share_prefixes" and has_layouts(config):
            continue  # no error for share_prefixes=false: most layouts require it
        if not can(spec, need):
            yield from _unused(where, section, option, backends_with(need))
    yield from _missing_optimizers(config, spec)
    if not spec.value_head and (config.algorithm.preset.family == "reward" or config.algorithm.estimator == "gae"):
        yield wrong(
            "algorithm.name",
            f"trains a model with a scalar head: use {backends_with('value_head')}",
            Kind.NOT_SUPPORTED,
            value=config.algorithm.name,
        )


def _missing_optimizers(config: RunConfig, spec: BackendSpec) -> Iterator[Problem]:
    for where, optim in (("actor.optim", config.actor.optim), ("critic.optim", config.critic.optim)):
        if optim.name not in spec.optimizers:
            text = f"is not an optimizer of `actor.backend={config.actor.backend}`: use {backends_with(optim.name)}"
            yield wrong(f"{where}.name", text, Kind.NOT_SUPPORTED, value=optim.name)


def _unused(where: str, section: Section, option: str, need: str) -> Iterator[Problem]:
    """Yield one error if the option is given; for an option that is a section, one error per given key."""
    inner = getattr(section, option)
    if isinstance(inner, Section):
        yield from unused(f"{where}.{option}", inner, every(inner), need)
    else:
        yield from unused(where, section, (option,), need)


def wrong_on_several_devices(config: RunConfig) -> Iterator[Problem]:
    """Yield a problem per option that does not fit the number of processes (one process per device)."""
    trainer = config.trainer
    yield from _sizes_that_do_not_divide(config)
    yield from _slices_without_packing(config)
    if not config.uses_ray:
        needed = "`trainer.nnodes` above 1, or `cluster.address`"
        yield from unused("cluster", config.cluster, every(config.cluster), needed)
    elif not config.cluster.num_tool_workers:
        options = ("cpus_per_tool_worker", "tool_worker_resources")
        yield from unused("cluster", config.cluster, options, "`cluster.num_tool_workers` above 0")
    if trainer.num_processes == 1 and not config.uses_ray:
        yield from unused("trainer", trainer, ("max_restarts",), "`trainer.n_gpus_per_node` above 1")
        return
    sharded = () if has_layouts(config) else (("actor", config.actor), ("critic", config.critic))
    for where, section in sharded:
        if section.optimizer_offload and not section.param_offload:
            text = f"needs `trainer.n_gpus_per_node=1`: use `{where}.param_offload`, which offloads the optimizer too"
            yield wrong(f"{where}.optimizer_offload", text, Kind.NOT_SUPPORTED, value=True)
    if config.uses_ray and config.rollout.sglang.colocate:
        text = "does not work on a Ray cluster, where SGLang servers get separate GPUs: use false"
        yield wrong("rollout.sglang.colocate", text, Kind.NOT_SUPPORTED, value=True)
    if config.actor.device not in ("auto", "cpu", "cuda"):
        text = "names one device, but each process has its own: use auto, cpu or cuda"
        yield wrong("actor.device", text, Kind.CONFLICT, value=config.actor.device)
    if trainer.python_objects:
        text = "trains in other processes, which cannot receive Python objects: pass file paths, or use `agentrl train`"
        key = "trainer.n_gpus_per_node" if trainer.n_gpus_per_node > 1 else "trainer.nnodes"
        yield wrong(key, text, Kind.NOT_SUPPORTED, value=trainer.num_processes)


def _sizes_that_do_not_divide(config: RunConfig) -> Iterator[Problem]:
    processes = config.trainer.num_processes
    for where, section in (("actor", config.actor), ("ref", config.ref), ("critic", config.critic)):
        for key in ("fsdp_size", SLICES):
            if (size := getattr(section, key, None)) and processes % size:
                text = f"does not divide the number of processes, {processes}"
                yield wrong(f"{where}.{key}", text, Kind.CONFLICT, value=size)


def _slices_without_packing(config: RunConfig) -> Iterator[Problem]:
    sizes = [getattr(section, SLICES) or 1 for section in (config.actor, config.ref, config.critic)]
    if max(sizes) > 1 and not config.actor.share_prefixes:
        text = f"does not work with {SLICES} above 1, which needs packed tokens: use true"
        yield wrong("actor.share_prefixes", text, Kind.CONFLICT, value=False)


def _needs(config: RunConfig) -> Iterator[tuple[str, str, Section, str]]:
    """Yield (capability, section name, section, option that needs the capability)."""
    for where, section in (("actor", config.actor), ("ref", config.ref), ("critic", config.critic)):
        for option in (each for each in BACKEND_OPTIONS if each in every(section)):
            yield option, where, section, option
    yield "lora", "model", config.model, "lora_rank"
    yield "lora", "model", config.model, "lora_adapter_path"
    yield "routed_experts", "rollout", config.rollout, "routed_experts"
    yield "routed_experts", "actor", config.actor, "routed_experts"
    yield "copy_weights", "ref", config.ref, "sync_steps"
    yield "several_processes", "trainer", config.trainer, "n_gpus_per_node"
    yield "several_processes", "trainer", config.trainer, "nnodes"
    yield "async_save", "trainer", config.trainer, "async_save"
