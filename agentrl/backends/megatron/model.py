"""The part of a model on one process: chunks of pipeline stages, their optimizer, and parts of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from torch import Tensor, nn

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Scores
from agentrl.backends.fsdp.ranks import ProcessPeers, Ranks
from agentrl.backends.megatron.architecture.build import build_chunks
from agentrl.backends.megatron.architecture.layers import ScalarLayer
from agentrl.backends.megatron.architecture.model_config import transformer_config
from agentrl.backends.megatron.architecture.replay import check_replay
from agentrl.backends.megatron.layout import check_processes, join_layout
from agentrl.backends.megatron.platform import runs_on_device
from agentrl.backends.megatron.training.heads import Head, LanguageHead, ScalarHead
from agentrl.backends.megatron.training.optimizer import LayoutOptimizer, divides_state
from agentrl.backends.megatron.training.passes import Passes
from agentrl.backends.megatron.weights.checkpoint import read_parts, write_parts
from agentrl.backends.megatron.weights.freezing import fingerprint, freeze
from agentrl.backends.megatron.weights.mapping import Box, Part, write_to
from agentrl.backends.megatron.weights.offload import StorageOffload
from agentrl.backends.megatron.weights.parts import Weights
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes
from agentrl.backends.megatron.weights.source import Source, weights_of
from agentrl.backends.shared_memory import WeightFacts
from agentrl.backends.torch.batches import cut
from agentrl.backends.torch.checkpoint import (
    STATE_FILE,
    random_states,
    read_state,
    reading,
    restore_random_states,
    write_errors,
)
from agentrl.backends.torch.cpu_offload import Moves, moves_of
from agentrl.backends.torch.freezing import check_same_frozen
from agentrl.backends.torch.gradients import MiniBatch, accumulate_gradients, score_passes
from agentrl.errors import ConfigError
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.loading import max_positions
from agentrl.types.sample import Sample


class LayoutPeers(ProcessPeers):
    """All processes of a run, as the copies of a model that they hold."""

    def __init__(self, ranks: Ranks, num_copies: int) -> None:
        super().__init__(ranks)
        self.size = num_copies


class MegatronModel:
    """See `HeldModel`. All ranks call its methods at once, inside `on_device`.

    Attributes:
        place: where this process is in the layout.
        source: the model's folder.
    """

    @runs_on_device
    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        actor = request.actor
        layout = actor.megatron
        check_processes(layout, ranks.size)
        in_use = any(isinstance(held, MegatronModel) for held in ranks.held.values())
        self.position = join_layout(layout, seed, in_use=in_use)
        self.source = Source(request.model, request.key, value_head=request.value_head)
        recompute = request.model.enable_gradient_checkpointing
        hf, dtype = self.source.config, self.source.dtype
        self._config = transformer_config(hf, dtype, layout, recompute=recompute, key=request.key)
        layer = partial(ScalarLayer, self._config, bias=self.source.head_bias) if request.value_head else None
        chunks = [chunk.to(ranks.device) for chunk in build_chunks(self._config, hf, layer)]
        self.weights = Weights(chunks, hf, ranks.control)
        saved = self.source.weights()
        self.weights.read(saved, self.source.new_weights(saved))
        if request.trainable and actor.freeze_modules:
            freeze(chunks, self.weights, actor.freeze_modules)
        self._frozen = fingerprint(self.weights)
        wrapped = self._wrapped(chunks, request)
        moves = moves_of(ranks.device)
        self.optimizer = self._optimizer(wrapped, request, moves) if request.trainable else None
        self._parking = StorageOffload(wrapped, moves if actor.param_offload else None)
        self.weights.readable = self._parking.readable
        replays = request.routed_experts and request.trainable
        if replays:
            check_replay(self._config)
        self._head: Head = ScalarHead() if request.value_head else LanguageHead(hf.vocab_size)
        self.passes = Passes(wrapped, self._config, self._head, ranks.device, replays=replays)
        self._peers = LayoutPeers(ranks, ranks.size // layout.model_parallel_size)
        slices = layout.context_parallel_size
        self._cut = partial(
            cut, config=actor, shares_prefixes=False, device=ranks.device, padded=False, num_slices=slices
        )

    def _wrapped(self, chunks: Sequence[GPTModel], request: ModelRequest) -> list[nn.Module]:
        if not request.trainable:
            return [chunk.requires_grad_(False) for chunk in chunks]
        options = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True, use_distributed_optimizer=divides_state(request.actor)
        )
        return [
            DistributedDataParallel(self._config, options, chunk, disable_bucketing=number > 0)
            for number, chunk in enumerate(chunks)
        ]

    def _optimizer(self, chunks: Sequence[nn.Module], request: ModelRequest, moves: Moves | None) -> LayoutOptimizer:
        actor = request.actor
        return LayoutOptimizer(
            chunks,
            actor.optim,
            actor.grad_clip,
            request.total_updates,
            self.source.dtype,
            distributed=divides_state(actor),
            moves=moves if actor.optimizer_offload else None,
        )

    @property
    def vocabulary_size(self) -> int:
        """See `Backend.vocabulary_size`."""
        size: int = self.source.config.vocab_size
        return size

    @property
    def max_positions(self) -> int | None:
        """See `Backend.max_positions`."""
        return max_positions(self.source.config)

    @property
    def changing_names(self) -> Sequence[str]:
        """Names of the trained weights in memory."""
        return self.weights.trained(self.weights.memory_names)

    @runs_on_device
    def accumulate(self, batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> dict[str, float]:
        """See `HeldModel.accumulate`. Afterwards the gradients of all processes are summed.

        `update` must follow: the weights stay on the device until then.
        """
        assert self.optimizer is not None
        self._parking.fetch(gradients=True)  # cleared below
        packs = [[own[index] for index in indices] for indices in self._cut([batch.samples[index] for index in own])]
        self.optimizer.clear_gradients()
        found = accumulate_gradients(self.passes, batch, loss, packs, self._peers)
        finalize_model_grads([*self.passes.chunks])
        return found | {"num_micro_batches": float(len(packs))}

    @runs_on_device
    def update(self) -> dict[str, float]:
        """See `HeldModel.update`."""
        assert self.optimizer is not None
        found = self.optimizer.step()
        self._parking.put_away()
        return found

    @runs_on_device
    def score_part(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        """See `HeldModel.score_part`; empty on processes that do not report."""
        packs = self._cut(samples)
        idle: list[list[int]] = [[]] * (self._peers.most(len(packs)) - len(packs))
        with self._parking.in_use():
            found = score_passes(self.passes, samples, [*packs, *idle], self._head.outputs)
        return self._head.scores(found) if self.position.reports else Scores([], [])

    def facts(self) -> Mapping[str, WeightFacts]:
        """See `HeldWeights.facts`."""
        return self.weights.facts()

    def places(self, name: str, complete: Tensor) -> Mapping[int, Sequence[Tensor]]:
        """See `HeldWeights.places`."""
        return self.weights.places(name, complete)

    def own_parts(self, name: str) -> Sequence[Tensor]:
        """See `HeldWeights.own_parts`."""
        return self.weights.own_parts(name)

    @runs_on_device
    def place(self, weights: dict[str, Tensor]) -> None:
        """See `HeldModel.place`."""
        with self._parking.in_use():
            self.weights.place(weights)
            self._refresh()

    @runs_on_device
    def copy_part(self, source: MegatronModel, names: Sequence[str]) -> None:
        """See `HeldModel.copy_part`: all weights are copied."""
        with self._parking.in_use(), source._parking.in_use():
            self.weights.copy(source.weights)
            self._refresh()

    def _refresh(self) -> None:
        if self.optimizer is not None:
            self.optimizer.refresh()

    @runs_on_device
    def save_part(self, folder: Path, ranks: Ranks) -> None:
        """Write this process's parts of the optimizer state; rank 0 also writes the rest of the state."""
        num_updates = 0 if self.optimizer is None else self.optimizer.num_updates
        parts = () if self.optimizer is None else self._state_parts(self.optimizer)
        try:
            with write_errors(folder):
                if ranks.rank == 0:
                    rest = {"num_updates": num_updates, "random": random_states(), "frozen": self._frozen}
                    torch.save({"optimizer": None} | rest, folder / STATE_FILE)
                write_parts(folder, ranks.rank, parts)
        finally:
            for _ in parts:  # the processes exchange all parts, also if one cannot write
                pass

    def _state_parts(self, optimizer: LayoutOptimizer) -> Iterator[tuple[str, Box, Tensor]]:
        for each in self.weights.parameters:
            if not each.value.requires_grad:
                continue
            for key, complete in optimizer.state(each.value):
                for part in each.parts:
                    if part.is_first:
                        yield f"{part.name}/{key}", part.box, _boxed(part, complete)

    @runs_on_device
    def load_part(self, folder: Path) -> None:
        """See `HeldModel.load_part`; the checkpoint may come from another layout."""
        with reading(folder), self._parking.in_use():
            state = read_state(folder)
            if find_adapter(folder):
                raise ConfigError.keyless("it holds a LoRA adapter, but this run trains whole weights")
            parts = None if self.optimizer is None else read_parts(folder)
            check_same_frozen(parts is None or state.get("frozen", self._frozen) == self._frozen)
            self.weights.read(weights_of(folder, "checkpoint"))
            self._refresh()
            if self.optimizer is not None and parts is not None:
                self._load_optimizer(self.optimizer, parts, state["num_updates"])
            restore_random_states(state["random"])

    def _load_optimizer(self, optimizer: LayoutOptimizer, saved: SavedBoxes, num_updates: int) -> None:
        with optimizer.in_use():
            for each in self.weights.parameters:
                if not each.value.requires_grad:
                    continue
                keys = optimizer.state_names(each.value, num_updates)
                complete = {key: _assembled(each.value, each.parts, saved, key) for key in keys}
                optimizer.load_state(each.value, complete, num_updates)
        optimizer.num_updates = num_updates


def _boxed(part: Part, complete: Tensor) -> Tensor:
    """Return the values of a part, with the shape of its box, on the CPU."""
    return part.view(complete).detach().cpu().reshape([length for _, length in part.box])


def _assembled(parameter: Tensor, parts: Sequence[Part], saved: SavedBoxes, key: str) -> Tensor:
    """Return the saved state of a parameter, in its shape; 0 where it pads the vocabulary."""
    found = torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
    for part in parts:
        write_to(part, found, saved.read(f"{part.name}/{key}", part.box))
    return found
