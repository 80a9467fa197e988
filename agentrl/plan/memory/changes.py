"""Search for the smallest changes of a configuration with which a run fits into memory, as keys to paste."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from agentrl.config.resolve import with_values
from agentrl.config.rules.combinations import check_rules
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.plan.layout import Layout, is_embedded, layout_of, num_used, servers_of
from agentrl.plan.memory.fit import fit_of
from agentrl.plan.memory.serving import num_running
from agentrl.plan.shapes import Shape
from agentrl.plan.split.keys import device_keys
from agentrl.plan.split.layouts import last_stage, possible

MOST = 3
"""Maximum number of changes that are returned."""
_FACTORS = (1, 2, 4, 8, 16, 32, 64, 128)
PER_NODE = 8
"""Assumed number of devices of a node, if it is unknown."""
_LORA_RANK = 16

_SECTION = "actor.megatron"
_ENDS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")

Values = Mapping[str, object]
Fits = Callable[[RunConfig], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """Keys that make a run fit into memory.

    Attributes:
        cost: larger changes cost more; see `_training` and `_engines`.
        needs: number of devices that the changed run uses, if this is more than are available; else 0.
    """

    values: Values
    cost: float
    needs: int = 0

    def __or__(self, other: Change) -> Change:
        return Change({**self.values, **other.values}, self.cost + other.cost)

    @property
    def text(self) -> str:
        """The keys, as on the command line."""
        return keys_text(self.values)

    @property
    def shown(self) -> str:
        """The keys, followed by the number of devices if the changed run uses more devices than are available."""
        return f"{self.text} (needs {self.needs} devices)" if self.needs else self.text


def keys_text(values: Values) -> str:
    """Return keys and values as on the command line."""
    return " ".join(f"{key}={_written(value)}" for key, value in values.items())


def changes_for(
    config: RunConfig,
    shape: Shape,
    memory: float,
    *,
    on_cpu: bool = False,
    num_devices: float = math.inf,
    per_node: int = PER_NODE,
) -> list[Change]:
    """Return the cheapest changes with which the run fits, in order of cost; empty if none is found.

    No change contains all keys of a cheaper change.

    Args:
        num_devices: number of available devices; changes that use more devices come last.
        per_node: number of devices of a node.
    """
    found = _found(config, shape, partial(_fits, shape, memory, on_cpu), num_devices, per_node)
    used = [num_used(with_values(config, each.values)) for each in found]
    return [replace(each, needs=num if num > num_devices else 0) for each, num in zip(found, used, strict=True)]


def _found(
    config: RunConfig, shape: Shape, fits: Callable[[str, RunConfig], bool], num_devices: float, per_node: int
) -> list[Change]:
    if fits("trainer", config):
        return _distinct(_fitting(config, _engines(config), partial(fits, "engine"), num_devices))
    found, trains = list[Change](), partial(fits, "trainer")
    for change in _distinct(_fitting(config, _training(config, shape, trains, per_node), trains, num_devices)):
        changed = with_values(config, change.values)
        engine = next(_fitting(changed, _engines(changed), partial(fits, "engine"), num_devices), None)
        found += [] if engine is None else [change | engine]
    return found


def _distinct(changes: Iterator[Change]) -> list[Change]:
    found: list[Change] = []
    for change in changes:
        if not any(each.values.keys() <= change.values.keys() for each in found):
            found.append(change)
        if len(found) == MOST or not change.values:
            break
    return found


def _fitting(config: RunConfig, options: Iterator[Change], fits: Fits, num_devices: float) -> Iterator[Change]:
    """Yield options that fit and are valid, cheapest first; options with more than `num_devices` devices come last."""
    changes = [(change, with_values(config, change.values)) for change in options]
    for change, changed in sorted(changes, key=lambda each: (num_used(each[1]) > num_devices, each[0].cost)):
        if fits(changed) and (not change.values or refused(changed) is None):
            yield change


def _fits(shape: Shape, memory: float, on_cpu: bool, device: str, config: RunConfig) -> bool:
    """Whether the run fits into the memory of one kind of device, `trainer` or `engine`."""
    uses = fit_of(config, shape, memory, on_cpu=on_cpu).uses
    return all(use.fits for use in uses if use.device.startswith(device))


def refused(config: RunConfig) -> str | None:
    """Return the first mistake that `agentrl train` would report; None if there is none."""
    try:
        check_rules(config)
    except ConfigError as error:
        return error.problems[0].text
    return None


def _engines(config: RunConfig) -> Iterator[Change]:
    """Yield changes of SGLang servers: fewer rollouts at a time, more devices per server, more servers."""
    servers, args = servers_of(config), config.rollout.sglang.server_args
    yield Change({}, 0)
    if servers.embedded:
        return
    for tensor, more, fewer in product((1, 2, 4, 8, 16), _FACTORS, _FACTORS):
        values: dict[str, object] = {}
        if tensor > 1:
            values["rollout.sglang.server_args"] = {**args, "tp_size": servers.tensor * tensor}
        if more > 1:
            values["rollout.sglang.num_replicas"] = servers.replicas * more
        if servers.elsewhere and (more > 1 or fewer > 1):
            continue  # the run does not start these servers, so it cannot change their number or limits
        if fewer > 1:
            values["rollout.max_num_seqs"] = max(1, num_running(config, servers) // fewer)
        yield Change(values, len(values) + math.log2(tensor * more) + 1.2 * math.log2(fewer))


def _training(config: RunConfig, shape: Shape, fits: Fits, per_node: int) -> Iterator[Change]:
    """Yield changes of training. Recomputation and smaller micro-batches cost least, LoRA and more devices most."""
    sets = [_recomputed(config), _shorter(config), _offloaded(config), _adapters(config), _moved(config)]
    most = _together(tuple(max(each, key=lambda change: change.cost) for each in sets))
    simple = [_together(chosen) for chosen in product(*sets)]
    for layout in _layouts(config, shape, per_node):
        # `most` contains the largest change of each kind: if it does not fit, no combination fits
        if fits(with_values(config, (most | layout).values)):
            yield from (each | layout for each in simple)


def _together(changes: tuple[Change, ...]) -> Change:
    """Return one change that combines all `changes`."""
    found = Change({}, 0)
    for change in changes:
        found = found | change
    return found


def _recomputed(config: RunConfig) -> list[Change]:
    key, given = "model.enable_gradient_checkpointing", config.actor.megatron.recompute_granularity
    if config.model.enable_gradient_checkpointing or given:
        return [Change({}, 0)]
    return [Change({}, 0), Change({key: True}, 1)]


def _shorter(config: RunConfig) -> list[Change]:
    """Return the options: no change, or micro-batches with room for only one sample of maximum length."""
    longest, limit = config.data.max_sequence_length, config.actor.ppo_max_token_len_per_gpu
    found = [Change({}, 0)]
    if config.actor.use_dynamic_bsz and longest < limit:
        found.append(Change({"actor.ppo_max_token_len_per_gpu": longest}, 1))
    return found


def _offloaded(config: RunConfig) -> list[Change]:
    found = [Change({}, 0)]
    own = layout_of(config).kind
    if config.uses_reference and not config.ref.param_offload:
        found.append(Change({"ref.param_offload": True}, 1))
    if own != "fsdp" and not config.actor.optimizer_offload:
        found += [each | Change({"actor.optimizer_offload": True}, 1.5) for each in [*found]]
    if own == "fsdp" and not config.actor.param_offload:
        found += [each | Change({"actor.param_offload": True}, 2.5) for each in [*found]]
    return found


def _adapters(config: RunConfig) -> list[Change]:
    if config.model.lora_rank or config.model.lora_adapter_path:
        return [Change({}, 0)]
    return [Change({}, 0), Change({"model.lora_rank": _LORA_RANK}, 5)]


def _moved(config: RunConfig) -> list[Change]:
    """Return the options: no change, or SGLang servers on separate devices instead of the embedded engine."""
    if not is_embedded(config) or not config.algorithm.live:
        return [Change({}, 0)]
    return [Change({}, 0), Change({"rollout.engine": "sglang"}, 3)]


def _layouts(config: RunConfig, shape: Shape, per_node: int) -> Iterator[Change]:
    """Yield changes to more devices and to other parallel sizes."""
    present = layout_of(config)
    for factor in _FACTORS:
        devices = present.devices * factor
        if factor > 1 and devices % -(-devices // per_node):
            continue  # the nodes would have different numbers of devices
        more = Change(device_keys(devices, config, per_node), 1 + math.log2(factor)) if factor > 1 else Change({}, 0)
        if present.kind == "megatron":
            yield from (more | each for each in _megatron(present, shape, devices, per_node))
        else:
            yield from (more | each for each in _ulysses(present, shape, devices))


def _ulysses(present: Layout, shape: Shape, devices: int) -> Iterator[Change]:
    yield Change({}, 0)
    for size in (2, 4, 8):
        if size > present.ulysses and devices % size == 0 and shape.attention.heads % size == 0:
            yield Change({"actor.ulysses_sequence_parallel_size": size}, 0.6 + 0.1 * size)


def _megatron(present: Layout, shape: Shape, devices: int, per_node: int) -> Iterator[Change]:
    sizes = {
        "tensor_model_parallel_size": present.tensor,
        "pipeline_model_parallel_size": present.pipeline,
        "context_parallel_size": present.context,
        "expert_model_parallel_size": present.expert,
    }
    for factors in product((1, 2, 4), repeat=len(sizes)):
        new = [size * factor for size, factor in zip(sizes.values(), factors, strict=True)]
        if not possible(shape, devices, per_node, *new):
            continue
        keys = {f"{_SECTION}.{name}": size for name, size in zip(sizes, new, strict=True) if size != sizes[name]}
        cost = sum(0.6 + 0.4 * math.log2(factor) for factor in factors if factor > 1)
        ends: dict[str, object] = {}
        if new[1] != present.pipeline:
            ends = dict.fromkeys((f"{_SECTION}.{name}" for name in _ENDS), None)
            ends[f"{_SECTION}.{_ENDS[1]}"] = last_stage(shape.num_layers, new[1])
            ends = {key: value for key, value in ends.items() if value != _now(present, key)}
        yield Change({**keys, **ends}, cost)


def _now(present: Layout, key: str) -> object:
    return getattr(present.megatron, key.rpartition(".")[2])


def _written(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "'{" + ", ".join(f"{name}: {_written(each)}" for name, each in value.items()) + "}'"
    return str(value)
