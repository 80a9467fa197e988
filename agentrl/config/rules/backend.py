"""Rules for options that the training backend does not support."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.capabilities import BACKEND_OPTIONS, backend_spec, backends_with, can, engine_spec
from agentrl.config.base import Section
from agentrl.config.rules.unused import every, unused, wrong
from agentrl.config.run import RunConfig
from agentrl.errors import Kind, Problem


def ignored_by_backend(config: RunConfig) -> Iterator[Problem]:
    """Yield one error per option that the backend ignores."""
    spec = backend_spec(config.actor.backend)
    for need, where, section, option in _needs(config):
        if not can(spec, need):
            yield from unused(where, section, (option,), backends_with(need))
    if not spec.value_head and (config.algorithm.preset.family == "reward" or config.algorithm.estimator == "gae"):
        yield wrong(
            "algorithm.name",
            f"trains a model of values: use {backends_with('value_head')}",
            Kind.NOT_SUPPORTED,
            value=config.algorithm.name,
        )


def wrong_on_several_devices(config: RunConfig) -> Iterator[Problem]:
    """Yield the options that do not work with one process per device."""
    trainer = config.trainer
    if trainer.n_gpus_per_node == 1:
        yield from unused("trainer", trainer, ("max_restarts",), "`trainer.n_gpus_per_node` above 1")
        return
    for where, section in (("actor", config.actor), ("critic", config.critic)):
        if section.optim.name == "muon":
            text = "needs complete matrices: use adamw, or `trainer.n_gpus_per_node=1`"
            yield wrong(f"{where}.optim.name", text, Kind.NOT_SUPPORTED, value="muon")
        if section.optimizer_offload and not section.param_offload:
            text = f"needs `trainer.n_gpus_per_node=1`: use `{where}.param_offload`, which offloads the optimizer too"
            yield wrong(f"{where}.optimizer_offload", text, Kind.NOT_SUPPORTED, value=True)
    if config.actor.device not in ("auto", "cpu", "cuda"):
        text = "names one device, but each process has its own: use auto, cpu or cuda"
        yield wrong("actor.device", text, Kind.CONFLICT, value=config.actor.device)
    if engine_spec(config.rollout.engine).checkpoint_weights and config.model.lora_rank:
        text = f"`rollout.engine={config.rollout.engine}` with LoRA needs `trainer.n_gpus_per_node=1`"
        yield Problem("trainer.n_gpus_per_node", Kind.NOT_SUPPORTED, text)
    if trainer.python_objects:
        text = "trains in other processes, which have no Python objects: name files, use `agentrl train`"
        yield wrong("trainer.n_gpus_per_node", text, Kind.NOT_SUPPORTED, value=trainer.n_gpus_per_node)


def _needs(config: RunConfig) -> Iterator[tuple[str, str, Section, str]]:
    """Yield (capability, section name, section, option that needs the capability)."""
    for where, section in (("actor", config.actor), ("ref", config.ref), ("critic", config.critic)):
        for option in (each for each in BACKEND_OPTIONS if each in every(section)):
            yield option, where, section, option
    yield "lora", "model", config.model, "lora_rank"
    yield "lora", "model", config.model, "lora_adapter_path"
    yield "routed_experts", "rollout", config.rollout, "routed_experts"
    yield "copy_weights", "ref", config.ref, "sync_steps"
    yield "several_processes", "trainer", config.trainer, "n_gpus_per_node"
