"""Bytes in the memory of a device that trains, by phase and part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from agentrl.config.actor import ActorConfig
from agentrl.config.run import RunConfig
from agentrl.plan.layout import Layout
from agentrl.plan.memory.activations import Kept
from agentrl.plan.memory.batches import micro_batches
from agentrl.plan.memory.precision import Precision, training_precision
from agentrl.plan.memory.state import (
    State,
    cast_copies,
    gathered,
    predicts_ahead,
    state_of,
    table_size,
    with_scalar_head,
)
from agentrl.plan.shapes import Shape, Weights

Parts = Mapping[str, float]
MAX_LOGITS = 2**27
"""Maximum number of logits at a time. Copied from `agentrl.backends.torch.logprobs`, which imports torch."""
_LOGIT_ARRAYS = 5
"""Number of float32 arrays, each as large as the logits, that exist at the same time: logits, log-softmax,
probabilities, gradients."""
RUNTIME = 1.0e9
"""Bytes of a CUDA context and its libraries."""
NCCL = 1.0e9
"""Bytes of the buffers of NCCL's process groups."""
_UNKNOWN_RANK = 16
"""Assumed rank of the adapter in `model.lora_adapter_path`, because the plan does not read that folder."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """Memory of one device of a pipeline stage during training.

    Attributes:
        on_cpu: whether the devices are CPU processes.
    """

    config: RunConfig
    shape: Shape
    layout: Layout
    stage: int = 0
    on_cpu: bool = False

    def phases(self) -> dict[str, Parts]:
        """Return the bytes of each part in each phase of a step; parts without bytes have no entry."""
        found = {"update": self._in_update(self.config.actor, self._actor(), self.shape, self._others("actor"))}
        if (critic := self._critic()) is not None:
            of_critic, others = self._critic_actor(), self._others("critic")
            found["critic's update"] = self._in_update(of_critic, critic, with_scalar_head(self.shape), others)
        if self._reference().weights:
            found["scores of the reference"] = {"reference": self._reference().weights, **self._others("reference")}
        return {name: {part: size for part, size in parts.items() if size} for name, parts in found.items()}

    def between(self) -> dict[str, float]:
        """Return the bytes of each part that stays on the device while rollouts are sampled."""
        return {part: size for part, size in self._others("").items() if size}

    @property
    def _precision(self) -> Precision:
        return training_precision(self.config, self.shape)

    @property
    def rank(self) -> int:
        """Rank of the trained adapters; 0 without adapters."""
        model = self.config.model
        return model.lora_rank or (_UNKNOWN_RANK if model.lora_adapter_path else 0)

    def _actor(self) -> State:
        return self._state(self.config.actor, self.shape, trained=True, rank=self.rank)

    def _critic_actor(self) -> ActorConfig:
        """Return the critic's settings in the form of an actor's settings; see `trainer.builders.models`."""
        critic, actor = self.config.critic, self.config.actor
        own = {name: getattr(critic, name) for name in ("optim", "param_offload", "optimizer_offload")}
        limit = critic.ppo_max_token_len_per_gpu or actor.ppo_max_token_len_per_gpu
        return actor.model_copy(update={**own, "ppo_max_token_len_per_gpu": limit})

    def _critic(self) -> State | None:
        if self.config.algorithm.estimator != "gae":
            return None
        return self._state(self._critic_actor(), with_scalar_head(self.shape), trained=True)

    def _reference(self) -> State:
        if not self.config.uses_reference or self.rank:
            return State()
        offloads = self.config.ref.param_offload
        if offloads and self.layout.kind == "fsdp":
            return State()
        return self._state(self.config.actor, self.shape, trained=False)

    def _state(self, actor: ActorConfig, shape: Shape, *, trained: bool, rank: int = 0) -> State:
        return state_of(shape, self.layout, self._precision, actor, stage=self.stage, trained=trained, rank=rank)

    def _others(self, busy: str) -> dict[str, float]:
        """Return the bytes that models other than `busy` keep on the device."""
        found: dict[str, float] = {}
        if busy != "actor":
            found |= self._idle("", self._actor(), self.config.actor)
        if busy != "critic" and (critic := self._critic()) is not None:
            found |= self._idle("critic: ", critic, self._critic_actor())
        if busy != "reference" and not self.config.ref.param_offload:
            found["reference"] = self._reference().weights
        return found | self._runtime()

    def _runtime(self) -> dict[str, float]:
        if self.on_cpu:
            return {}
        return {"CUDA and NCCL": RUNTIME + (NCCL if self.layout.devices > 1 else 0)}

    def _idle(self, prefix: str, state: State, actor: ActorConfig) -> dict[str, float]:
        """Return the bytes that a trained model keeps between uses. Megatron also keeps its buffer of gradients."""
        if self.on_cpu:
            actor = actor.model_copy(update={"param_offload": False, "optimizer_offload": False})
        if self.layout.kind == "fsdp" and actor.param_offload:
            return {}
        keeps = self.layout.kind == "megatron" and not actor.param_offload
        return {
            f"{prefix}weights": 0 if actor.param_offload else state.weights,
            f"{prefix}gradients": state.gradients if keeps else 0,
            f"{prefix}optimizer": 0 if actor.optimizer_offload else state.optimizer,
        }

    def _in_update(self, actor: ActorConfig, state: State, shape: Shape, others: Parts) -> Parts:
        on_host = self.layout.kind == "fsdp" and actor.param_offload and not self.on_cpu
        optimizer = 0 if actor.optimizer_offload and not self.on_cpu else state.optimizer
        held = State() if on_host else State(state.weights, state.gradients, optimizer)
        step = State() if on_host else state
        passes = self._passes(actor, shape)
        # after the passes, an offloaded optimizer state returns to the device; this may be the peak
        if sum(passes.values()) + optimizer < step.optimizer:
            held, passes = step, {}
        resharded = actor.reshard_after_forward
        buffers = gathered(shape, self.layout, self._precision, trained=not self.rank, resharded=resharded)
        return {**_shown(held, buffers, passes), **others}

    def _passes(self, actor: ActorConfig, shape: Shape) -> Parts:
        """Return the parts at whichever of the two `moments` needs more memory."""
        return max(self.moments(actor, shape), key=lambda parts: sum(parts.values()))

    def moments(self, actor: ActorConfig, shape: Shape) -> tuple[Parts, Parts]:
        """Return the bytes while logits are computed, and the bytes during a layer's backward pass (without logits)."""
        batches = micro_batches(self.config, self.layout, actor, on_cpu=self.on_cpu)
        layout, precision = self.layout, self._precision
        copied = self.on_cpu and self.config.actor.share_prefixes
        compute = Precision(precision.compute, precision.compute) if layout.kind == "fsdp" else precision
        kept = Kept(shape, layout, compute, self.rank, on_cpu=self.on_cpu, copies_keys=copied)
        layers = self._layers(kept, actor)
        stored = self._kept(kept, layers, batches.number) * batches.tokens + self._copies(actor, shape)
        again = max(layers[: self._recomputed(len(layers))], default=0.0) * batches.tokens
        logits = self._logits(batches.tokens, shape) if self._is_last else 0
        backward = {"activations": stored + again, "backward of a layer": kept.working() * batches.tokens}
        return {"activations": stored, "logits": logits}, backward

    @property
    def _is_last(self) -> bool:
        return self.stage == self.layout.pipeline - 1

    def _own(self, shape: Shape) -> Sequence[int]:
        return self.layout.stages(shape.num_layers)[self.stage]

    def _ahead(self, actor: ActorConfig, shape: Shape) -> Sequence[Weights]:
        """Return the layers for multi-token prediction that this stage trains."""
        return shape.mtp if self._is_last and predicts_ahead(self.layout, actor) else ()

    def _layers(self, kept: Kept, actor: ActorConfig) -> list[float]:
        """Bytes of each layer of this stage for each token, without recomputation."""
        shape = kept.shape
        of_kind = {sparse: kept.layer(sparse=sparse) for sparse in (False, True)}
        ahead = [kept.predicting(sparse=weights.experts > 0) for weights in self._ahead(actor, shape)]
        return [of_kind[shape.is_sparse(number)] for number in self._own(shape)] + ahead

    def _copies(self, actor: ActorConfig, shape: Shape) -> float:
        """Bytes of copies of weights that exist during the passes."""
        layout, precision = self.layout, self._precision
        casts = cast_copies([shape.layers[number] for number in self._own(shape)], layout, precision)
        if layout.pipeline == 1 or not self._ahead(actor, shape):
            return casts
        return casts + precision.weight * table_size(shape, layout)  # the stage's copy of the embedding

    def _kept(self, kept: Kept, layers: list[float], number: int) -> float:
        """Bytes per token that the micro-batches in flight keep."""
        ends = 2 * kept.boundary  # the stage's input (embeddings or received states), and the head's input
        recomputed = self._recomputed(len(layers))
        stored = recomputed * kept.boundary + sum(layers[recomputed:])
        return _in_flight(self.layout, self.stage, number) * (stored + ends)

    def _recomputed(self, number: int) -> int:
        """Return how many layers the backward pass computes again, of the `number` layers of a stage."""
        megatron = self.config.actor.megatron
        if not (self.config.model.enable_gradient_checkpointing or megatron.recompute_granularity == "full"):
            return 0
        if megatron.recompute_method == "block":
            return min(number, (megatron.recompute_num_layers or 1) * self.layout.chunks)
        return number

    def _logits(self, tokens: int, shape: Shape) -> float:
        if shape.outer.head == shape.hidden:  # a critic, which has one output per token
            return 0
        columns = ceil(shape.vocabulary / self.layout.tensor)
        return 4 * _LOGIT_ARRAYS * min(tokens * columns, max(MAX_LOGITS, columns))


def _in_flight(layout: Layout, stage: int, number: int) -> float:
    """Number of micro-batches whose activations a stage keeps (1F1B); not an integer if stages have several chunks."""
    if layout.chunks == 1:
        return min(layout.pipeline - stage, number)
    parts = (layout.pipeline - stage - 1) * 2 + (layout.chunks - 1) * layout.pipeline + 1
    return min(parts, number * layout.chunks) / layout.chunks


def _shown(state: State, buffers: float, passes: Parts) -> dict[str, float]:
    return {
        "weights": state.weights,
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "gathered weights": buffers,
        **passes,
    }


def stages_of(trainer: Trainer) -> list[Trainer]:
    """Return a `Trainer` for each pipeline stage."""
    return [replace(trainer, stage=stage) for stage in range(trainer.layout.pipeline)]
