"""The process groups of a parallel layout. They are global in megatron-core, so all models of a run share a layout."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

from agentrl.config.megatron import MegatronConfig
from agentrl.errors import ConfigError, Kind


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is in the layout.

    Attributes:
        samples: data-parallel rank of the process; processes with the same rank compute the same samples.
        reports: whether this process reports outputs and metrics for all processes with the same samples.
    """

    samples: int
    reports: bool


_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)


def join_layout(layout: MegatronConfig, seed: int, *, in_use: bool) -> Place:
    """Create the process groups of `layout`; return the place of this process. All processes call this together.

    Args:
        in_use: whether a model still uses the groups of an earlier call.

    Raises:
        ConfigError: the groups in use belong to another layout.
    """
    sizes: dict[str, Any] = {name: getattr(layout, name) for name in _SIZES}  # Any: as in megatron-core
    sizes["expert_tensor_parallel_size"] = layout.expert_tensor_size
    sizes["virtual_pipeline_model_parallel_size"] = layout.virtual_stages
    if _joined != [sizes]:
        if in_use:
            text = "`actor.megatron`: all models of a run must have the same parallel layout"
            raise ConfigError.at("actor.megatron", Kind.CONFLICT, text)
        _destroy_groups()
        _joined[:] = [sizes]
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(**sizes)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    first = parallel_state.get_tensor_model_parallel_rank() == parallel_state.get_context_parallel_rank() == 0
    last_stage = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    return Place(parallel_state.get_data_parallel_rank(), first and last_stage)


_joined: list[dict[str, Any]] = []  # global, because the groups are global too


def _destroy_groups() -> None:
    """Destroy the groups of the layout. megatron-core only forgets them, so their gloo threads would keep running."""
    gc.collect()  # freed models may still be in reference cycles, which keep the groups alive
    for group in parallel_state._global_process_group_list or ():
        if isinstance(group, dist.ProcessGroup):
            dist.destroy_process_group(group)
    parallel_state.destroy_model_parallel()


def check_processes(layout: MegatronConfig, num_processes: int) -> None:
    """Check that the number of processes is a multiple of the number that one copy of the model needs.

    Raises:
        ConfigError: the number of processes is not such a multiple; the message names both numbers.
    """
    size = layout.model_parallel_size
    if num_processes % size:
        text = (
            f"`actor.megatron`: a copy of the model needs {size} processes (tensor x pipeline x context parallel), but"
            f" the run has {num_processes}: set `trainer.n_gpus_per_node` to a multiple of {size}"
        )
        raise ConfigError.at("actor.megatron", Kind.CONFLICT, text)


def world_group() -> dist.ProcessGroup:
    """Return the group of all processes."""
    group = dist.group.WORLD
    assert group is not None
    return group
