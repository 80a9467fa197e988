"""The part of a sharded model on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Scores
from agentrl.backends.fsdp.checkpoint import write_shards
from agentrl.backends.fsdp.ranks import ProcessPeers, Ranks
from agentrl.backends.fsdp.sharding import local_part, place, shard, shard_like
from agentrl.backends.torch.backend import TorchBackend, prepared_model
from agentrl.backends.torch.checkpoint import (
    check_parts,
    random_states,
    read_state,
    reading,
    restore_random_states,
    saved_weights,
)
from agentrl.backends.torch.freezing import changing_weights, every_weight, fingerprint
from agentrl.backends.torch.gradients import MiniBatch, accumulate_gradients
from agentrl.backends.torch.heads import LANGUAGE, SCALAR
from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.backends.torch.routing_replay import RoutingReplay
from agentrl.backends.torch.shards import read_shards
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import adapter_off, adapter_values
from agentrl.models.loading import load_tokenizer
from agentrl.types.sample import Sample


class ShardedModel(TorchBackend):
    """A model of which each rank holds a part. All ranks call its methods at once, on the thread of their calls."""

    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        kind, actor = SCALAR if request.value_head else LANGUAGE, request.actor
        model = request.model.without_adapter() if request.value_head else request.model
        device = torch.device("cpu") if actor.device == "cpu" else ranks.device
        loaded = prepared_model(kind, model, actor, device, seed, request.trainable, request.key)
        replay = RoutingReplay(loaded) if request.routed_experts and request.trainable else None
        unsharded = actor.model_copy(update={"param_offload": False})
        super().__init__(loaded, load_tokenizer(model), model, unsharded, None, replay, kind)
        self.peers = ProcessPeers(ranks)
        self._frozen = fingerprint(loaded) if request.trainable else ""
        dtype = getattr(torch, actor.autocast) if actor.autocast in ("bfloat16", "float16") else None
        mesh = init_device_mesh(device.type, (ranks.size,))
        self._positionwise.compute_inside(shard(loaded, mesh, offload=actor.param_offload, param_dtype=dtype))
        self._weights = dict(every_weight(loaded))
        self.changing_names = [name for name, _ in changing_weights(loaded)]
        if request.trainable:
            self._optimizer = ScheduledOptimizer(loaded, actor.optim, actor.grad_clip, request.total_updates)

    def accumulate(self, batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> dict[str, float]:
        """Accumulate the gradient of this rank's samples of `batch`; return this rank's part of the metrics."""
        assert self._optimizer is not None
        packs = self._own_packs(batch.samples, own)
        self._optimizer.clear_gradients()
        with self._positionwise.running():
            found = accumulate_gradients(self._positionwise, batch, loss, packs, self.peers)
        return found | {"num_micro_batches": float(len(packs))}

    def update(self) -> dict[str, float]:
        """Do one update with the accumulated gradients of all ranks; see `ScheduledOptimizer.step`."""
        assert self._optimizer is not None
        return self._optimizer.step()

    def score_part(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        """Score this rank's samples; with `base`, under the base model of the adapter."""
        if base:
            with adapter_off(self.model):
                return self._score(samples)
        return self._score(samples)

    def named_weights(self) -> dict[str, Tensor]:
        """Return all parameters and buffers, live; tied weights once."""
        return self._weights

    def save_part(self, folder: Path) -> None:
        """Write this rank's part of the optimizer state, if the model is trained."""
        if self._optimizer:
            write_shards(folder, self._optimizer.named_state(), self.peers.group)

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer, if the model has one."""
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)

    def trainer_state(self) -> dict[str, Any]:
        """Return the rest of the state, which is the same on every rank."""
        num_updates = self._optimizer.num_updates if self._optimizer else 0
        return {"optimizer": None, "num_updates": num_updates, "random": random_states(), "frozen": self._frozen}

    def load_part(self, folder: Path) -> None:
        """Read a checkpoint that any number of ranks wrote; see `Backend.load`."""
        with reading(folder):
            state = read_state(folder)
            same_rest = not self._optimizer or state.get("frozen", self._frozen) == self._frozen
            check_parts(folder, self.model, same_rest=same_rest)
            place(self._every_name(), self._saved_weights(folder))
            if self._optimizer:
                self._load_optimizer(folder, state)
            restore_random_states(state["random"])

    def copy_part(self, source: ShardedModel, names: Sequence[str]) -> None:
        """Copy the named weights of another model of the same shape, sharded in the same way."""
        own, others = self.named_weights(), source.named_weights()
        with torch.no_grad():
            for name in names:
                local_part(own[name]).copy_(local_part(others[name]))

    def _every_name(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters(remove_duplicate=False)), **dict(self.model.named_buffers())}

    def _saved_weights(self, folder: Path) -> Mapping[str, Tensor]:
        if adapter := find_adapter(folder):
            return adapter_values(self.model, adapter)
        return saved_weights(folder, self.model, self._model_config, self._kind.load_again)

    def _load_optimizer(self, folder: Path, state: dict[str, Any]) -> None:
        assert self._optimizer is not None
        parameters = dict(self.model.named_parameters())
        if state["optimizer"] is None:
            found = read_shards(folder, parameters, self.peers.group)
            self._optimizer.load_named_state(found, state["num_updates"])
        else:
            unsharded = self._optimizer.named_tensors(state["optimizer"])
            found = {name: shard_like(value, parameters[name.rpartition("/")[0]]) for name, value in unsharded.items()}
            self._optimizer.load_named_state(found, state["optimizer"]["num_updates"])

    def _own_packs(self, samples: Sequence[Sample], own: Sequence[int]) -> list[list[int]]:
        return [[own[index] for index in indices] for indices in self._cut([samples[index] for index in own])]

    def _passes(self, packs: list[list[int]]) -> list[list[int]]:
        return [*packs, *([[]] * (self.peers.most(len(packs)) - len(packs)))]
