"""The torch backend: one Hugging Face model on one device, for training or only for scoring."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction
from agentrl.backends.base import Score, Scores, StepStats
from agentrl.backends.torch import checkpoint
from agentrl.backends.torch.batches import OnePass, at_once, cut
from agentrl.backends.torch.checkpoint import copied
from agentrl.backends.torch.cpu_offload import CpuOffload, moves_of
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.freezing import changing_weights, fingerprint, freeze_modules
from agentrl.backends.torch.gradient_checkpointing import enable_checkpointing
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch, score_passes
from agentrl.backends.torch.heads import LANGUAGE, SCALAR, ModelKind
from agentrl.backends.torch.optim import ScheduledOptimizer
from agentrl.backends.torch.recorded_experts import replayed_share, with_experts, without_experts
from agentrl.backends.torch.routing_replay import RoutingReplay
from agentrl.config.actor import ActorConfig
from agentrl.config.model import ModelConfig
from agentrl.config.run import RoutedBy
from agentrl.engines.base import WeightStream
from agentrl.errors import ConfigError, Kind
from agentrl.models.adapters import adapter_off, has_adapter
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.loading import find_device, load_tokenizer, max_positions
from agentrl.models.merging import merged_weights
from agentrl.models.weights_in_place import load_in_place
from agentrl.types.sample import Sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Result = TypeVar("Result")


class TorchBackend:
    """See `Backend`. All calls run on one dedicated thread, one at a time.

    Created by `load_torch_backend` or `load_scalar_backend`. The tokenizer is only written to checkpoints. `optimizer`
    is None for a model that is not trained. With `replay`, tokens use their recorded experts. Without it, recorded
    experts are ignored. `one_pass` and `device` are described at `PositionwiseModel`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        model_config: ModelConfig,
        config: ActorConfig,
        optimizer: ScheduledOptimizer | None,
        replay: RoutingReplay | None = None,
        kind: ModelKind = LANGUAGE,
        one_pass: OnePass = at_once,
        device: torch.device | None = None,
    ) -> None:
        self.model, self._tokenizer, self._kind = model, tokenizer, kind
        self._model_config, self._config, self._optimizer = model_config, config, optimizer
        autocast = getattr(torch, config.autocast) if config.autocast in ("bfloat16", "float16") else None
        self._positionwise = PositionwiseModel(
            model,
            share_prefixes=config.share_prefixes,
            flex=config.flex_attention,
            autocast=autocast,
            replay=replay,
            head=kind.head(model),
            one_pass=one_pass,
            device=device,
        )
        self._replays, self._records = replay is not None, replay is not None and replay.records
        self._frozen = fingerprint(model) if optimizer else ""
        self._parking = CpuOffload(model.parameters, moves_of(model.device) if config.param_offload else None)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch-backend")
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")

    @property
    def vocabulary_size(self) -> int:
        """See `Backend.vocabulary_size`."""
        size: int = self.model.get_input_embeddings().weight.shape[0]
        return size

    @property
    def max_positions(self) -> int | None:
        """See `Backend.max_positions`."""
        return max_positions(self.model.config)

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """See `Backend.train_step`. If no sample has a trained token, the update is skipped."""
        return await self._run(lambda: self._train_step(self._replayed(samples), loss))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """See `Backend.score`."""
        if self._records:
            return await self._run(lambda: self._score(without_experts(samples), records=True))
        return await self._run(lambda: self._score(self._replayed(samples)))

    def reference_score(self) -> Score | None:
        """See `Backend.reference_score`: scores without the model's LoRA adapter; recorded experts are ignored."""
        return self._score_base if has_adapter(self.model) else None

    async def _score_base(self, samples: Sequence[Sample]) -> Scores:
        def work() -> Scores:
            with adapter_off(self.model):
                return self._score(without_experts(samples))

        return await self._run(work)

    def weights(self) -> WeightStream:
        """Yield the weights of `changing_weights`, detached but not copied. Read them before the next update."""
        return changing_weights(self.model)

    def checkpoint_weights(self) -> WeightStream:
        """See `Backend.checkpoint_weights`. With LoRA, yields only layers with an adapter: merged float32 copies."""
        adapted = has_adapter(self.model)
        return checkpoint_weights(self.model, merged_weights(self.model) if adapted else changing_weights(self.model))

    async def save(self, path: Path) -> None:
        """See `Backend.save`: a model folder for `from_pretrained` (LoRA: an adapter folder), plus `trainer_state/`."""
        await self._run(lambda: self._save(path))

    async def begin_save(self, path: Path) -> Future[None]:
        """See `Backend.begin_save`."""
        weights, state = await self._run(lambda: (copied(checkpoint.saved_tensors(self.model)), copied(self._state())))
        return self._background.submit(self._write, path, weights, state)

    async def load(self, path: Path) -> None:
        """See `Backend.load`.

        Raises:
            ConfigError: `path` is not a checkpoint of this model and optimizer.
        """
        await self._run(lambda: self._load(path))

    async def copy_weights(self, weights: WeightStream) -> None:
        """See `Backend.copy_weights`."""
        await self._run(lambda: load_in_place(self.model, weights))

    async def close(self) -> None:
        """Wait for all calls and saves that have begun; then end the threads. A second call does nothing."""
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self._background.shutdown)

    async def _run(self, work: Callable[[], Result]) -> Result:
        def in_use() -> Result:
            with self._parking.in_use():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, in_use)

    def _cut(self, samples: Sequence[Sample]) -> list[list[int]]:
        model = self._positionwise
        return cut(samples, self._config, model.shares_prefixes, model.device, copies_keys=model.copies_keys)

    def _replayed(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        return samples if self._replays else without_experts(samples)

    def _train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        if self._optimizer is None:
            raise RuntimeError("this backend was loaded with trainable=False")
        num_tokens = sum(sample.num_trained_tokens for sample in samples)
        if not num_tokens:
            return StepStats({"num_tokens": 0.0, "num_micro_batches": 0.0, "skipped_updates": 1.0})
        packs = self._cut(samples)
        self._optimizer.clear_gradients()  # gradients may remain after an earlier error
        with self._positionwise.running():
            metrics = accumulate_gradients(self._positionwise, mini_batch(samples, loss), loss, packs)
        counts = {"num_tokens": float(num_tokens), "num_micro_batches": float(len(packs))}
        if self._replays:
            counts["replayed_share"] = replayed_share(samples)
        return StepStats(metrics | counts | self._optimizer.step())

    def _score(self, samples: Sequence[Sample], *, records: bool = False) -> Scores:
        model, packs = self._positionwise, self._passes(self._cut(samples))
        with model.running(), model.recording(records) as passes:
            found = score_passes(model, samples, packs, model.head.outputs)
        return with_experts(model.head.scores(found), passes, packs, len(samples))

    def _passes(self, packs: list[list[int]]) -> list[list[int]]:
        """Return the micro-batches to score. A subclass adds empty ones, so that all peers run equally many passes."""
        return packs

    def _save(self, path: Path) -> None:
        checkpoint.save_checkpoint(path, self.model, self._tokenizer, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "optimizer": self._optimizer and self._optimizer.state_dict(),
            "random": checkpoint.random_states(),
            "frozen": self._frozen,
        }

    def _write(self, path: Path, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        with checkpoint.write_errors(path):
            checkpoint.write_checkpoint(path, self.model, self._tokenizer, weights, state)

    def _load(self, path: Path) -> None:
        with checkpoint.reading(path):
            state = checkpoint.read_state(path)
            same_rest = not self._optimizer or state.get("frozen", self._frozen) == self._frozen
            checkpoint.check_parts(path, self.model, same_rest=same_rest)
            checkpoint.read_weights(path, self.model, self._model_config, self._kind.load_again)
            if self._optimizer and state["optimizer"] is None:
                from agentrl.backends.torch.shards import read_shards  # the import takes 0.2 s

                self._optimizer.load_named_state(
                    read_shards(path, dict(self.model.named_parameters())), state["num_updates"]
                )
            elif self._optimizer:
                self._optimizer.load_state_dict(state["optimizer"])
            checkpoint.restore_random_states(state["random"])


def load_torch_backend(
    model: ModelConfig,
    actor: ActorConfig,
    *,
    total_updates: int,
    seed: int,
    trainable: bool = True,
    key: str = "model.path",
    routed_by: RoutedBy | None = None,
) -> TorchBackend:
    """Load a language model for training. With `trainable=False`, it only scores, as a reference policy does.

    Args:
        total_updates: length of the learning rate schedule in updates, unless `actor.optim.total_updates` is set.
        seed: seed of torch's random generators, for new adapters, and for models that draw random numbers.
        key: the configuration key that contains the model's path, for error messages.
        routed_by: see `ModelRequest`.

    Raises:
        ConfigError: the model or device cannot be used.
    """
    return _load(LANGUAGE, model, actor, total_updates, seed, trainable, key, routed_by)


def load_scalar_backend(
    model: ModelConfig,
    actor: ActorConfig,
    *,
    total_updates: int,
    seed: int,
    trainable: bool = True,
    key: str = "model.path",
) -> TorchBackend:
    """Load a model that outputs one number per token, such as a critic: see `load_scalar_model`.

    A trained token's number is read at the position that predicts the token, so it depends only on earlier tokens. A
    loss reads the numbers as `TokenBatch.scalars`; `score` returns them as `Scores.values`. To score a complete
    sequence, append any token and mark the token as trained.

    Args:
        actor: training options, with the same meaning as for a policy.
        total_updates, seed, trainable, key: as for `load_torch_backend`.

    Raises:
        ConfigError: the model or device cannot be used.
    """
    return _load(SCALAR, model.without_adapter(), actor, total_updates, seed, trainable, key, None)


def _load(
    kind: ModelKind,
    model: ModelConfig,
    actor: ActorConfig,
    total_updates: int,
    seed: int,
    trainable: bool,
    key: str,
    routed_by: RoutedBy | None,
) -> TorchBackend:
    loaded = prepared_model(kind, model, actor, find_device(actor.device, "actor.device"), seed, trainable, key)
    tokenizer = load_tokenizer(model)
    if not trainable:
        return TorchBackend(loaded, tokenizer, model, actor, None, kind=kind)
    moves = moves_of(loaded.device) if actor.optimizer_offload else None
    optimizer = ScheduledOptimizer(loaded, actor.optim, actor.grad_clip, total_updates, moves)
    replay = RoutingReplay(loaded, routed_by=routed_by) if routed_by else None
    return TorchBackend(loaded, tokenizer, model, actor, optimizer, replay, kind)


def prepared_model(
    kind: ModelKind,
    model: ModelConfig,
    actor: ActorConfig,
    device: torch.device,
    seed: int,
    trainable: bool,
    key: str,
) -> PreTrainedModel:
    """Load a model, freeze the weights that are not trained, and enable gradient checkpointing if configured.

    Raises:
        ConfigError: the model or device cannot be used.
    """
    torch.manual_seed(seed)
    loaded = kind.load(model, device, key=key)
    if not trainable:
        return loaded.requires_grad_(False)
    if loaded.dtype == torch.float16 or actor.autocast == "float16":
        text = "float16 gradients underflow: train in bfloat16, or in float32 with actor.autocast=bfloat16"
        raise ConfigError.at("model.dtype", Kind.NOT_SUPPORTED, text)
    freeze_modules(loaded, actor.freeze_modules)
    if model.enable_gradient_checkpointing:
        enable_checkpointing(loaded)
    return loaded
