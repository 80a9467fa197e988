"""The part of a model on one process: chunks of pipeline stages, their optimizer, and parts of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor, nn

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Scores
from agentrl.backends.fsdp.checkpoint import failing_together
from agentrl.backends.fsdp.ranks import ProcessPeers, Ranks
from agentrl.backends.megatron.architecture.balancing import balances, collect_losses
from agentrl.backends.megatron.architecture.bridged_config import bridged_config
from agentrl.backends.megatron.architecture.build import build_chunks
from agentrl.backends.megatron.architecture.layers import ScalarLayer
from agentrl.backends.megatron.architecture.lora import base_model, keep_recomputable
from agentrl.backends.megatron.architecture.model_config import BRIDGED, transformer_config
from agentrl.backends.megatron.architecture.replay import check_replay
from agentrl.backends.megatron.bridge import auto_bridge, mapping_registry
from agentrl.backends.megatron.layout import check_processes, join_layout
from agentrl.backends.megatron.platform import runs_on_device
from agentrl.backends.megatron.training.gradients import end_cycles, frozen, with_gradients
from agentrl.backends.megatron.training.heads import Head, LanguageHead, ScalarHead
from agentrl.backends.megatron.training.optimizer import LayoutOptimizer, divides_state
from agentrl.backends.megatron.training.optimizer_parts import load_parts, state_parts
from agentrl.backends.megatron.training.passes import Passes
from agentrl.backends.megatron.training.prediction import PredictionLoss, check_same_layers, num_trained
from agentrl.backends.megatron.weights.adapters import Adapters
from agentrl.backends.megatron.weights.bridged import bridged
from agentrl.backends.megatron.weights.checkpoint import SavedState, read_parts, write_checkpoint
from agentrl.backends.megatron.weights.freezing import fingerprint, freeze
from agentrl.backends.megatron.weights.mapping import Mapped, mapped
from agentrl.backends.megatron.weights.offload import StorageOffload
from agentrl.backends.megatron.weights.parts import Weights
from agentrl.backends.megatron.weights.saved_boxes import SavedBoxes
from agentrl.backends.megatron.weights.source import Source, weights_of
from agentrl.backends.shared_memory import WeightFacts
from agentrl.backends.torch.batches import cut
from agentrl.backends.torch.checkpoint import check_kind, random_states, read_state, reading, restore_random_states
from agentrl.backends.torch.cpu_offload import Moves, moves_of
from agentrl.backends.torch.freezing import check_same_frozen
from agentrl.backends.torch.gradients import MiniBatch, accumulate_gradients, score_passes
from agentrl.backends.torch.recorded_experts import with_experts
from agentrl.models.adapted_skeleton import adapted_skeleton
from agentrl.models.adapter_folder import find_adapter
from agentrl.models.adapters import adapter_values
from agentrl.models.loading import max_positions
from agentrl.types.sample import Sample


class LayoutPeers(ProcessPeers):
    """All processes of a run; `size` is the number of model copies that they hold."""

    def __init__(self, ranks: Ranks, num_copies: int) -> None:
        super().__init__(ranks)
        self.size = num_copies


class MegatronModel:
    """See `HeldModel`. All ranks call its methods together. Methods that use the device run inside `on_device`.

    Attributes:
        position: where this process is in the layout.
        source: the model's folder.
        saving: see `HeldModel.saving`.
        adapters: the model's LoRA adapters; None if the model has none.
    """

    saving: Future[None]

    @runs_on_device
    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        actor = request.actor
        layout = actor.megatron
        check_processes(layout, ranks.size)
        in_use = any(isinstance(held, MegatronModel) for held in ranks.held.values())
        self.position = join_layout(layout, seed, in_use=in_use)
        self.source = Source(ranks, request.model, request.key, value_head=request.value_head)
        recompute = request.model.enable_gradient_checkpointing
        hf, dtype = self.source.config, self.source.dtype
        self._bridge = auto_bridge(hf, layout, request.key)
        if hf.model_type in BRIDGED:
            self._config = bridged_config(self._bridge, hf, dtype, layout, recompute=recompute)
        else:
            self._config = transformer_config(hf, dtype, layout, recompute=recompute, key=request.key)
        layer = partial(ScalarLayer, self._config, bias=self.source.head_bias) if request.value_head else None
        num_ahead = num_trained(request, self.source)
        built = build_chunks(self._config, hf, layer, hybrid=layout.hybrid_model, num_ahead=num_ahead)
        chunks = [chunk.to(ranks.device) for chunk in built]
        self.adapters = _adapters(request, self.source)
        with failing_together(ranks.control):
            saved = self.source.weights()
        self.weights = self._weights(chunks, ranks, saved)
        self.weights.read(saved, self.source.new_weights(saved))
        if self.adapters is not None:
            self._start_adapters(self.adapters, seed)
        if request.trainable and actor.freeze_modules:
            freeze(chunks, self.weights, actor.freeze_modules)
        self._frozen = fingerprint(self.weights)
        wrapped = with_gradients(chunks, self._config, actor) if request.trainable else frozen(chunks)
        moves = moves_of(ranks.device)
        self.optimizer = self._optimizer(wrapped, request, moves) if request.trainable else None
        self._parking = StorageOffload(wrapped, moves if actor.param_offload else None)
        self.weights.readable = self._parking.readable
        routed_by = request.routed_by if request.trainable else None
        if routed_by:
            check_replay(self._config, routed_by)
        self._records, replays = routed_by == "actor", routed_by is not None
        self._head: Head = ScalarHead() if request.value_head else LanguageHead(hf.vocab_size)
        ahead = PredictionLoss(chunks, hf.vocab_size, num_ahead, layout.mtp_loss_scaling_factor) if num_ahead else None
        shares = actor.share_prefixes
        self.passes = Passes(
            wrapped, self._config, self._head, ranks.device, ahead, replays=replays, shares_prefixes=shares
        )
        self._own_losses: dict[str, float] = {}
        self._peers = LayoutPeers(ranks, ranks.size // layout.model_parallel_size)
        slices = layout.context_parallel_size
        self._cut = partial(
            cut, config=actor, shares_prefixes=shares, device=ranks.device, padded=False, num_slices=slices
        )

    def _parameters(self, chunks: Sequence[LanguageModule], ranks: Ranks, saved: SavedBoxes) -> Sequence[Mapped]:
        if self._bridge is None:
            return [each for chunk in chunks for each in mapped(chunk, self.vocabulary_size)]
        return bridged(chunks, mapping_registry(self._bridge, self.source.config), saved, ranks.control)

    def _weights(self, chunks: Sequence[LanguageModule], ranks: Ranks, saved: SavedBoxes) -> Weights:
        parameters, num_experts = self._parameters(chunks, ranks, saved), self._config.num_moe_experts or 0
        if self.adapters is None:
            return Weights(parameters, num_experts, ranks.control)
        for each in parameters:
            each.value.requires_grad_(False)
        keep_recomputable(chunks)
        own = self.adapters.attach(chunks, parameters)
        return Weights(parameters, num_experts, ranks.control, own, self.adapters.renamed)

    def _start_adapters(self, adapters: Adapters, seed: int) -> None:
        adapters.check_attached(self.weights.facts())
        self.weights.freeze_all_but(adapters.names)
        if self.source.adapter is not None:
            self.weights.place(adapter_values(adapters.skeleton, self.source.adapter))
            return
        for name, value in adapters.initial(self.weights.parameters, seed):
            self.weights.place({name: value})

    def _optimizer(self, chunks: Sequence[nn.Module], request: ModelRequest, moves: Moves | None) -> LayoutOptimizer:
        actor = request.actor
        return LayoutOptimizer(
            chunks,
            actor.optim,
            actor.grad_clip,
            request.total_updates,
            self.source.dtype if self.adapters is None else torch.float32,
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
        """Names of the weights in memory that training changes."""
        return self.weights.trained(self.weights.memory_names) if self.adapters is None else self.adapters.names

    @runs_on_device
    def accumulate(self, batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> dict[str, float]:
        """See `HeldModel.accumulate`; this method also sums the gradients of all processes.

        Call `update` next: the weights stay on the device until `update` is done.
        """
        assert self.optimizer is not None
        self._parking.fetch(gradients=True)  # allocates the gradients; `clear_gradients` sets them to 0
        packs = [[own[index] for index in indices] for indices in self._cut([batch.samples[index] for index in own])]
        self.optimizer.clear_gradients()
        found = accumulate_gradients(self.passes, batch, loss, packs, self._peers)
        self.optimizer.sum_gradients()
        routers = [router for own in self.passes.routers.values() for router in own]
        self._own_losses = collect_losses(routers, self._config) if balances(self._config) else {}
        if self.passes.prediction is not None:
            self._own_losses |= self.passes.prediction.collect()
        return found | {"num_micro_batches": float(len(packs))}

    @runs_on_device
    def update(self) -> dict[str, float]:
        """See `HeldModel.update`; also returns the losses of routers and of layers for multi-token prediction."""
        assert self.optimizer is not None
        found = self._own_losses | self.optimizer.step()
        self._parking.put_away()
        return found

    @runs_on_device
    def score_part(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        """See `HeldModel.score_part`; the result is empty on processes that do not report."""
        packs = self._cut(samples)
        idle: list[list[int]] = [[]] * (self._peers.most(len(packs)) - len(packs))
        adapted = base_model(self.passes.chunks) if base else nullcontext()
        recording = self.passes.recording(self._records and not base, keeps=self.position.reports)
        with self._parking.in_use(), adapted, recording as passes:
            found = score_passes(self.passes, samples, [*packs, *idle], self._head.outputs)
        if not self.position.reports:
            return Scores([], [])
        return with_experts(self._head.scores(found), passes, [*packs, *idle], len(samples))

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
        """See `HeldModel.copy_part`. Ignores `names`: all weights are copied."""
        with self._parking.in_use(), source._parking.in_use():
            self.weights.copy(source.weights)
            self._refresh()

    def _refresh(self) -> None:
        if self.optimizer is not None:
            self.optimizer.refresh()

    @runs_on_device
    def save_part(self, folder: Path, ranks: Ranks) -> None:
        """Write a checkpoint: rank 0 writes the weights, and every process its parts of the optimizer state."""
        write_checkpoint(folder, self._saved_state(), ranks.control)

    @runs_on_device
    def begin_writing(self, folder: Path, ranks: Ranks) -> None:
        """See `HeldModel.begin_writing`."""
        state = self._saved_state().copied()
        self.saving = ranks.in_background(lambda: write_checkpoint(folder, state, ranks.background))

    def _saved_state(self) -> SavedState:
        optimizer = self.optimizer
        num_updates = 0 if optimizer is None else optimizer.num_updates
        rest = {"optimizer": None, "num_updates": num_updates, "random": random_states(), "frozen": self._frozen}
        rest["predicts"] = self.passes.prediction is not None
        names = self.weights.saved_names if self.adapters is None else self.adapters.names
        parts = {name: self.weights.own_parts(name) for name in names}
        boxes = iter(()) if optimizer is None else state_parts(optimizer, self.weights.parameters)
        adapted = None if self.adapters is None else self.adapters.skeleton
        return SavedState(self.source, self.weights, parts, boxes, rest, adapted)

    @runs_on_device
    def load_part(self, folder: Path) -> None:
        """See `HeldModel.load_part`; the checkpoint may come from another layout."""
        with failing_together(self._peers.group), reading(folder):
            state = read_state(folder)
            check_kind(folder, adapter=self.adapters is not None)
            parts = None if self.optimizer is None else read_parts(folder)
            check_same_frozen(parts is None or state.get("frozen", self._frozen) == self._frozen)
            predicts = self.passes.prediction is not None
            check_same_layers(parts is None or state.get("predicts", False) == predicts, trained=predicts)
            saved = weights_of(folder, "checkpoint") if self.adapters is None else None
            adapter = None if self.adapters is None else find_adapter(folder)
        with reading(folder), self._parking.in_use():
            if saved is not None:
                self.weights.read(saved)
            elif self.adapters is not None and adapter is not None:
                self.weights.place(adapter_values(self.adapters.skeleton, adapter))
            self._refresh()
            if self.optimizer is not None and parts is not None:
                load_parts(self.optimizer, self.weights.parameters, parts, state["num_updates"])
            restore_random_states(state["random"])

    def free(self) -> None:
        """See `HeldModel.free`."""
        end_cycles(self.passes.chunks)


def _adapters(request: ModelRequest, source: Source) -> Adapters | None:
    if not (request.model.lora_rank or source.adapter):
        return None
    return Adapters(adapted_skeleton(request.model, source.config, source.base, source.adapter))
