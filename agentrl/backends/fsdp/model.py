"""The part of a sharded model on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Scores
from agentrl.backends.fsdp.checkpoint import SavedState, write_checkpoint
from agentrl.backends.fsdp.ranks import ProcessPeers, Ranks
from agentrl.backends.fsdp.sequence import SequenceGroup, check_sequence
from agentrl.backends.fsdp.sharding import (
    CompletePasses,
    loaded_in_parts,
    local_part,
    parts,
    place,
    shard,
    shard_like,
)
from agentrl.backends.shared_memory import WeightFacts
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
from agentrl.backends.torch.gradients import MiniBatch, RunsPasses, accumulate_gradients
from agentrl.backends.torch.heads import LANGUAGE, SCALAR
from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.backends.torch.routing_replay import RoutingReplay
from agentrl.backends.torch.shards import read_shards
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import adapter_off, adapter_values, has_adapter
from agentrl.models.loading import load_tokenizer
from agentrl.models.weights_in_place import every_name
from agentrl.types.sample import Sample


class ShardedModel(TorchBackend):
    """A model of which each rank holds a part. All ranks call each method at the same time, on one thread per rank.

    Attributes:
        is_in_first_copy: whether this rank has a part of the first copy (replica) of the weights. Only this copy is
            published and saved.
        saving: future of the last save in the background.
    """

    saving: Future[None]

    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        kind, actor = SCALAR if request.value_head else LANGUAGE, request.actor
        model = request.model.without_adapter() if request.value_head else request.model
        device = torch.device("cpu") if actor.device == "cpu" else ranks.device
        shards = actor.fsdp_size or ranks.size
        self.is_in_first_copy = ranks.rank < shards
        self._host = ranks.mesh("cpu", shards, named=False)
        with loaded_in_parts(self._host):
            loaded = prepared_model(kind, model, actor, torch.device("cpu"), seed, request.trainable, request.key)
        frozen = fingerprint(loaded) if request.trainable else ""
        dtype = getattr(torch, actor.autocast) if actor.autocast in ("bfloat16", "float16") else None
        root = shard(
            loaded, device, ranks.mesh(device.type, shards, named=True), offload=actor.param_offload, param_dtype=dtype
        )
        self._root, self._complete = root, not actor.reshard_after_forward
        routed_by = request.routed_by if request.trainable else None
        replay = RoutingReplay(loaded, root, routed_by) if routed_by else None
        unsharded = actor.model_copy(update={"param_offload": False})
        super().__init__(loaded, load_tokenizer(model), model, unsharded, None, replay, kind, root, device)
        self.peers, self._frozen = ProcessPeers(ranks), frozen
        if self.peers.most(int(self._positionwise.copies_keys)):
            self._positionwise.copy_keys()  # on all ranks or on none, because micro-batches depend on it
        self._weights = dict(every_weight(loaded))
        if (positions := actor.ulysses_sequence_parallel_size) > 1:
            check_sequence(self._positionwise, positions)
            self._positionwise.divide_positions(SequenceGroup(ranks.size, positions, device))
        self.changing_names = [name for name, _ in changing_weights(loaded)]
        if request.trainable:
            self._optimizer = ScheduledOptimizer(loaded, actor.optim, actor.grad_clip, request.total_updates)

    def accumulate(self, batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> dict[str, float]:
        """Accumulate the gradient of this rank's samples (indices `own` of `batch`); return this rank's metrics."""
        assert self._optimizer is not None
        packs = self._own_packs(batch.samples, own)
        self._optimizer.clear_gradients()
        model: RunsPasses = self._positionwise
        if self._complete:
            model = CompletePasses(model, self._root, self.peers.most(len(packs)))
        with self._positionwise.running():
            found = accumulate_gradients(model, batch, loss, packs, self.peers)
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
        return self._score(samples, records=self._records)

    def free(self) -> None:
        """See `HeldModel.free`. Nothing to do: Python's garbage collector frees the reference cycles of FSDP2."""

    def named_weights(self) -> dict[str, Tensor]:
        """Return all parameters and buffers without copying them; a tied weight has one entry."""
        return self._weights

    def facts(self) -> dict[str, WeightFacts]:
        """See `HeldWeights.facts`."""
        return {name: WeightFacts(value.shape, value.dtype) for name, value in self._weights.items()}

    def places(self, name: str, complete: Tensor) -> dict[int, list[Tensor]]:
        """See `HeldWeights.places`. Each part consists of rows of the weight."""
        shapes = [*parts(self._weights[name])]
        if len(shapes) == 1:
            return {0: [complete]}
        rows = torch.split(complete, [shape[0] for shape in shapes])
        return {rank: [place] for rank, place in enumerate(rows) if place.numel()}

    def own_parts(self, name: str) -> list[Tensor]:
        """See `HeldWeights.own_parts`."""
        return [local_part(self._weights[name])]

    def place(self, weights: dict[str, Tensor]) -> None:
        """Overwrite this rank's parts of the model with values from the complete weights `weights`."""
        place(self._weights, weights)

    def save_part(self, folder: Path, ranks: Ranks) -> None:
        """Write a checkpoint: rank 0 writes the weights, every rank writes its part of the optimizer state."""
        write_checkpoint(folder, self.saved_state(), ranks.control)

    def begin_writing(self, folder: Path, ranks: Ranks) -> None:
        """Copy the state to CPU memory, and write the copy in the background; see `HeldModel.saving`."""
        state = self.saved_state().copied(self._host)
        self.saving = ranks.in_background(lambda: write_checkpoint(folder, state, ranks.background))

    def saved_state(self) -> SavedState:
        """Return the state that this rank writes to a checkpoint; tensors are not copied."""
        every_name = self.changing_names if has_adapter(self.model) else [*self._weights]
        names = every_name if self.is_in_first_copy else []
        optimizer = self._optimizer.named_state() if self._optimizer else None
        num_updates = self._optimizer.num_updates if self._optimizer else 0
        rest = {"optimizer": None, "num_updates": num_updates, "random": random_states(), "frozen": self._frozen}
        weights = {name: self._weights[name] for name in names}
        return SavedState(self.model, self._tokenizer, weights, optimizer, rest)

    def load_part(self, folder: Path) -> None:
        """Read a checkpoint that any number of ranks wrote; see `Backend.load`."""
        with reading(folder):
            state = read_state(folder)
            same_rest = not self._optimizer or state.get("frozen", self._frozen) == self._frozen
            check_parts(folder, self.model, same_rest=same_rest)
            place(every_name(self.model), self._saved_weights(folder))
            if self._optimizer:
                self._load_optimizer(folder, state)
            restore_random_states(state["random"])

    def copy_part(self, source: ShardedModel, names: Sequence[str]) -> None:
        """Copy the named weights from `source`, a model of the same shape that is sharded in the same way."""
        own, others = self.named_weights(), source.named_weights()
        with torch.no_grad():
            for name in names:
                local_part(own[name]).copy_(local_part(others[name]))

    def _saved_weights(self, folder: Path) -> Mapping[str, Tensor]:
        if adapter := find_adapter(folder):
            return adapter_values(self.model, adapter)
        with loaded_in_parts(self._host):
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
