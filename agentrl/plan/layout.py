"""How a run divides its models over devices: the training layout, and the servers that sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentrl.capabilities import engine_spec
from agentrl.config.megatron import MegatronConfig
from agentrl.config.rules.megatron import has_layouts
from agentrl.config.run import RunConfig
from agentrl.engines.sglang.servers.command import integer, num_gpus

Kind = Literal["torch", "fsdp", "megatron"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The devices that train, and how they divide a model. For `fsdp` and `torch`, all sizes of Megatron are 1.

    Attributes:
        devices: number of devices; each runs one process.
        fsdp_size: number of processes that shard one copy of the weights (FSDP2); 1 without FSDP2.
        ulysses: number of processes that each compute a slice of the positions of the same samples (FSDP2).
        megatron: the sizes of Megatron's layout; other backends have the default sizes.
    """

    kind: Kind
    devices: int = 1
    fsdp_size: int = 1
    ulysses: int = 1
    megatron: MegatronConfig = field(default_factory=MegatronConfig)

    @property
    def tensor(self) -> int:
        """TP: number of processes among which each layer's matrices are divided."""
        return self.megatron.tensor_model_parallel_size

    @property
    def pipeline(self) -> int:
        """PP: number of pipeline stages."""
        return self.megatron.pipeline_model_parallel_size

    @property
    def chunks(self) -> int:
        """VPP: number of layer chunks per pipeline stage."""
        return self.megatron.num_layer_chunks

    @property
    def context(self) -> int:
        """CP, or Ulysses size: number of processes that each compute a slice of the positions of the same samples."""
        return self.megatron.context_parallel_size * self.ulysses

    @property
    def expert(self) -> int:
        """EP: number of processes among which the experts of a layer are divided."""
        return self.megatron.expert_model_parallel_size

    @property
    def expert_tensor(self) -> int:
        """ETP: number of processes among which each expert's matrices are divided."""
        return self.megatron.expert_tensor_size

    @property
    def sequence_parallel(self) -> bool:
        """Whether, between layers, the TP processes also divide the positions of the samples."""
        return self.megatron.sequence_is_parallel

    @property
    def data_parallel(self) -> int:
        """DP: number of groups of processes; different groups compute different samples."""
        return self.devices // (self.tensor * self.pipeline * self.context)

    @property
    def dense_copies(self) -> int:
        """DP x CP: number of processes with the same non-expert weights.

        These processes divide the state of the distributed optimizer. The number is 1 for other backends than Megatron.
        """
        return self.data_parallel * self.megatron.context_parallel_size if self.kind == "megatron" else 1

    @property
    def expert_copies(self) -> int:
        """Number of processes with the same experts; 1 for other backends than Megatron."""
        parts = self.expert * self.expert_tensor * self.pipeline
        return self.devices // parts if self.kind == "megatron" else 1

    def stages(self, num_layers: int) -> list[list[int]]:
        """Return the layer indices of each pipeline stage."""
        counts = self._layers_per_chunk(num_layers)
        found: list[list[int]] = [[] for _ in range(self.pipeline)]
        start = 0
        for _ in range(self.chunks):  # the first chunks of all stages, then the second chunks, ...
            for stage, count in enumerate(counts):
                found[stage] += range(start, start + count)
                start += count
        return found

    def _layers_per_chunk(self, num_layers: int) -> list[int]:
        first = self.megatron.num_layers_in_first_pipeline_stage
        last = self.megatron.num_layers_in_last_pipeline_stage
        others = self.pipeline - (first is not None) - (last is not None)
        rest = num_layers - (first or 0) - (last or 0)
        counts = [rest // others] * others if others else []
        counts = [*([first] if first else []), *counts, *([last] if last else [])]
        return [count // self.chunks for count in counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The engines that sample.

    Attributes:
        embedded: whether the engine is in the process of rank 0.
        replicas: number of engines; with SGLang, number of servers.
        tensor: number of devices of a server among which the matrices of each layer are divided.
        pipeline: number of pipeline stages of a server.
        data: number of parts of a server, each with its own KV cache (`dp_size` with `enable_dp_attention`).
        colocate: whether engines and training share the devices.
        elsewhere: whether the servers run already (`rollout.sglang.urls`).
        sized: whether the configuration contains the sizes of the servers; false only for servers that run already.
        memory_share: share of a device's memory for weights and KV cache (`mem_fraction_static`); None: SGLang chooses.
    """

    embedded: bool = True
    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    colocate: bool = True
    elsewhere: bool = False
    sized: bool = True
    memory_share: float | None = None

    @property
    def devices(self) -> int:
        """Number of devices of all servers."""
        return self.replicas * self.tensor * self.pipeline


def layout_of(config: RunConfig) -> Layout:
    """Return the training layout of a configuration that passed the rules of `agentrl train`."""
    devices = config.trainer.num_processes
    if has_layouts(config):
        return Layout(kind="megatron", devices=devices, megatron=config.actor.megatron)
    if devices == 1:
        return Layout(kind="torch")
    positions = config.actor.ulysses_sequence_parallel_size
    return Layout(kind="fsdp", devices=devices, fsdp_size=config.actor.fsdp_size or devices, ulysses=positions)


def is_embedded(config: RunConfig) -> bool:
    """Whether the engine runs in the process of rank 0. Every engine without servers does."""
    return "sglang" not in engine_spec(config.rollout.engine).options


def servers_of(config: RunConfig) -> Servers:
    """Return the engines of a configuration.

    Raises:
        ConfigError: a size in `rollout.sglang.server_args` is not an integer.
    """
    sglang = config.rollout.sglang
    if is_embedded(config):
        return Servers()
    given = sglang.options
    pipeline = integer(given, "pp_size") or 1
    share = given.get("mem_fraction_static")
    return Servers(
        embedded=False,
        replicas=len(sglang.urls) or sglang.num_replicas,
        tensor=num_gpus(given) // pipeline,
        pipeline=pipeline,
        data=(integer(given, "dp_size") or 1) if given.get("enable_dp_attention") else 1,
        colocate=sglang.colocate,
        elsewhere=bool(sglang.urls),
        sized=not sglang.urls or "tp_size" in given,
        memory_share=float(share) if isinstance(share, int | float) and not isinstance(share, bool) else None,
    )


def devices_of(layout: Layout, servers: Servers) -> int:
    """Return the number of devices of trainer and engine together."""
    if servers.embedded:  # the engine runs in the process of rank 0
        return layout.devices
    return max(layout.devices, servers.devices) if servers.colocate else layout.devices + servers.devices


def num_used(config: RunConfig) -> int:
    """Return the number of devices that a configuration uses."""
    return devices_of(layout_of(config), servers_of(config))
