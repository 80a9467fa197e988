"""Capabilities of engines and backends, and the registries of their names.

Rules and components check for a capability, never for the name of an engine or backend. A capability that a spec does
not declare is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypeVar

from agentrl.errors import AgentRLError, ConfigError, Kind, Problem, install_command, suggestion
from agentrl.registry import Registry

ENGINE_OPTIONS = (
    *("device", "dtype", "max_num_seqs", "max_kv_tokens", "deterministic"),
    *("weight_sync", "routed_experts", "script_path", "sglang"),
)
"""Options of `rollout.*` that only some engines read; `sglang` is the section `rollout.sglang`."""
BACKEND_OPTIONS = (
    *("device", "autocast", "share_prefixes", "flex_attention", "freeze_modules"),
    *("param_offload", "optimizer_offload", "fsdp_size", "reshard_after_forward"),
    *("ulysses_sequence_parallel_size", "megatron"),
)
"""Options of `actor.*` (and of `ref.*` and `critic.*`) that only some backends read; `megatron` is the section
`actor.megatron`, for backends with Megatron's parallel layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Capabilities of an engine, and the function that creates it.

    Attributes:
        load: `async load(config, chat) -> Engine`, called with the RunConfig and the ChatFormat of a run. It imports
            heavy libraries itself, so that importing a spec stays fast.
        options: the options among `ENGINE_OPTIONS` that the engine reads.
        images: requests may contain images.
        deterministic: sampled tokens are bitwise reproducible, at least with `rollout.deterministic`.
        fixed_rows: type of device -> fixed batch size of decoding steps with `rollout.deterministic`.
        checkpoint_weights: `Engine.load_weights` expects the names of weights in a checkpoint, with LoRA adapters
            merged. If false, it expects the names of `Backend.weights`, with separate adapters.
        colocate: the engine can release GPU memory during training; it implements `Colocated`.
        probed: after each weight update, the engine samples a few tokens, and the backend scores them for comparison.
    """

    load: Callable[..., Any]  # Any: an engine, whose protocol is in a higher layer
    options: frozenset[str] = frozenset()
    images: bool = False
    deterministic: bool = False
    fixed_rows: Mapping[str, int] = field(default_factory=dict)
    checkpoint_weights: bool = False
    probed: bool = False
    colocate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Capabilities of a backend, and the function that creates it.

    Attributes:
        load: `load(config, request) -> Backend`, called with the RunConfig and a ModelRequest. It imports heavy
            libraries itself, so that importing a spec stays fast.
        options: the options among `BACKEND_OPTIONS` that the backend reads.
        optimizers: the values of `actor.optim.name` that the backend supports.
        lora: trains LoRA adapters.
        value_head: trains models that output one number per token: critics and reward models.
        routed_experts: trains with recorded experts, and can record the experts that its own router chooses.
        copy_weights: a reference model can copy the policy's weights (`ref.sync_steps`).
        several_processes: trains with one process per device (`trainer.n_gpus_per_node`).
        async_save: writes checkpoints in the background (`Backend.begin_save`).
        without: keys of `actor.megatron` that the backend does not read although it reads the section.
        python: lowest supported version of Python; None: every version that agentrl supports.
        modules: modules that must be installed.
        extra: name of agentrl's pip extra that installs `modules`.
    """

    load: Callable[..., Any]  # Any: a backend, whose protocol is in a higher layer
    options: frozenset[str] = frozenset()
    optimizers: frozenset[str] = frozenset({"adamw"})
    lora: bool = False
    value_head: bool = False
    routed_experts: bool = False
    copy_weights: bool = False
    several_processes: bool = False
    async_save: bool = False
    without: frozenset[str] = frozenset()
    python: tuple[int, int] | None = None
    modules: tuple[str, ...] = ()
    extra: str = ""


ENGINES: Registry[EngineSpec] = Registry(
    "engine",
    {
        "torch": "agentrl.engines.torch.spec:SPEC",
        "sglang": "agentrl.engines.sglang.spec:SPEC",
        "scripted": "agentrl.engines.scripted:SPEC",
    },
)
BACKENDS: Registry[BackendSpec] = Registry(
    "backend",
    {"torch": "agentrl.backends.torch.spec:SPEC", "megatron": "agentrl.backends.megatron.spec:SPEC"},
)

Spec = TypeVar("Spec", EngineSpec, BackendSpec)


def engine_spec(name: str) -> EngineSpec:
    """Return the spec of `rollout.engine`.

    Raises:
        ConfigError: the name cannot be imported, or is no EngineSpec.
    """
    return _spec("rollout.engine", ENGINES, name, EngineSpec)


def backend_spec(name: str) -> BackendSpec:
    """Return the spec of `actor.backend`.

    Raises:
        ConfigError: the name cannot be imported, or is no BackendSpec.
    """
    return _spec("actor.backend", BACKENDS, name, BackendSpec)


def check_installed(name: str) -> None:
    """Refuse the backend `name` if this version of Python or the installed libraries cannot run it.

    Raises:
        ConfigError: one line with the command that installs the missing modules.
    """
    spec = backend_spec(name)
    install = install_command(spec.extra)
    if spec.python is not None and sys.version_info[:2] < spec.python:
        need, have = (".".join(map(str, version)) for version in (spec.python, sys.version_info[:2]))
        text = f"needs Python {need} or later, not {have}: make an environment with that version, and in it {install}"
    elif absent := [module for module in spec.modules if not _is_installed(module)]:
        text = f"needs {', '.join(absent)}, not installed here: {install}"
    else:
        return
    raise ConfigError(Problem("actor.backend", Kind.NOT_FOUND, f"`actor.backend={name}` {text}"))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False


def _spec(key: str, registry: Registry[Spec], name: str, kind: type[Spec]) -> Spec:
    try:
        found = registry.get(name)
    except AgentRLError as error:
        raise ConfigError(Problem(key, Kind.NOT_FOUND, f"`{key}`: {error}")) from None
    if not isinstance(found, kind):
        text = f"`{key}`: '{name}' is not an object of the class {kind.__name__} (docs/extending.md)"
        raise ConfigError(Problem(key, Kind.WRONG_VALUE, text))
    return found


def engine_names() -> list[str]:
    """Names of the registered engines."""
    return ENGINES.names()


def backend_names() -> list[str]:
    """Names of the registered backends."""
    return BACKENDS.names()


def known_engine(name: str) -> str:
    """Return `name` if it is registered or an import path. Nothing is imported.

    Raises:
        ValueError: the name is unknown; the text lists the valid names and the nearest one.
    """
    return _known(name, ENGINES, engine_names)


def known_backend(name: str) -> str:
    """Return `name` if it is registered or an import path. Nothing is imported.

    Raises:
        ValueError: the name is unknown; the text lists the valid names and the nearest one.
    """
    return _known(name, BACKENDS, backend_names)


def _known(name: str, registry: Registry[Any], names: Callable[[], list[str]]) -> str:  # Any: either kind
    if registry.is_builtin(name) or registry.is_path(name) or name in (valid := names()):
        return name
    listed = f"expected {', '.join(sorted(valid))} or path/to/file.py:NAME"
    near = suggestion(name, valid)
    raise ValueError(f"{near} {listed[0].upper()}{listed[1:]}" if near.startswith("did you mean") else listed)


def engines_with(option: str) -> str:
    """List the built-in engines that read an option of `ENGINE_OPTIONS`, as the end of the text of a `Problem`."""
    names = [name for name in ENGINES.builtins() if option in engine_spec(name).options]
    return " or ".join(f"`rollout.engine={name}`" for name in names)


def backends_with(capability: str) -> str:
    """List the built-in backends with a capability (see `can`), as the end of the text of a `Problem`."""
    names = [name for name in BACKENDS.builtins() if can(backend_spec(name), capability)]
    return " or ".join(f"`actor.backend={name}`" for name in names) or "a backend of your own that supports it"


def can(spec: BackendSpec, capability: str) -> bool:
    """Whether a backend has a capability, reads an option of `BACKEND_OPTIONS`, or has an optimizer of this name."""
    return capability in spec.options | spec.optimizers or bool(getattr(spec, capability, False))
