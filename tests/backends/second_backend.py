"""A second backend, in one file: SGD on padded rows.

Select it with `actor.backend=tests/backends/second_backend.py:SPEC`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Score, Scores, StepStats
from agentrl.backends.torch.batches import cut, micro_batch
from agentrl.backends.torch.forward import PositionwiseModel
from agentrl.backends.torch.gradients import accumulate_gradients, mini_batch
from agentrl.capabilities import BackendSpec
from agentrl.config import RunConfig
from agentrl.config.actor import ActorConfig
from agentrl.engines.base import WeightStream
from agentrl.models.loading import load_model, load_tokenizer
from agentrl.models.weights_in_place import load_in_place
from agentrl.types.sample import Sample

Result = TypeVar("Result")
CPU = torch.device("cpu")


class PlainBackend:
    """A minimal `Backend`. Each call runs in a thread; a lock admits one call at a time."""

    def __init__(self, model: PreTrainedModel, tokenizer: object, actor: ActorConfig, trainable: bool) -> None:
        self.model, self._tokenizer, self._actor = model.requires_grad_(trainable), tokenizer, actor
        self._forward = PositionwiseModel(model, share_prefixes=False)
        rate = actor.optim.peak_lr
        self._optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9) if trainable else None
        self._lock = threading.Lock()

    @property
    def vocabulary_size(self) -> int:
        return self.model.config.vocab_size

    @property
    def max_positions(self) -> int | None:
        return self.model.config.max_position_embeddings

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        return await self._alone(lambda: self._train_step(samples, loss))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        return await self._alone(lambda: self._score(samples))

    def reference_score(self) -> Score | None:
        return None

    def weights(self) -> WeightStream:
        return ((name, tensor.detach()) for name, tensor in self.model.named_parameters())

    def checkpoint_weights(self) -> WeightStream:
        return self.weights()

    async def copy_weights(self, weights: WeightStream) -> None:
        await self._alone(lambda: load_in_place(self.model, weights))

    async def save(self, path: Path) -> None:
        await self._alone(lambda: self._save(path))

    async def load(self, path: Path) -> None:
        await self._alone(lambda: self._load(path))

    async def close(self) -> None:
        pass

    async def _alone(self, work: Callable[[], Result]) -> Result:
        def locked() -> Result:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

    def _packs(self, samples: Sequence[Sample]) -> list[list[int]]:
        return cut(samples, self._actor, False, CPU)

    def _train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        if self._optimizer is None:
            raise RuntimeError("this backend was loaded with trainable=False")
        num_tokens = sum(sample.num_trained_tokens for sample in samples)
        if not num_tokens:
            return StepStats({"num_tokens": 0.0, "num_micro_batches": 0.0, "skipped_updates": 1.0})
        packs = self._packs(samples)
        self._optimizer.zero_grad()
        metrics = accumulate_gradients(self._forward, mini_batch(samples, loss), loss, packs)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._actor.grad_clip)
        if finite := bool(norm.isfinite()):
            self._optimizer.step()
        counts = {"num_tokens": num_tokens, "num_micro_batches": len(packs), "skipped_updates": not finite}
        counts |= {"grad_norm": norm, "lr": self._actor.optim.peak_lr}
        return StepStats(metrics | {name: float(value) for name, value in counts.items()})

    @torch.no_grad()
    def _score(self, samples: Sequence[Sample]) -> Scores:
        found = {name: [[0.0] * len(sample.token_ids) for sample in samples] for name in ("logprobs", "entropy")}
        for indices in self._packs(samples):
            batch = micro_batch([samples[index] for index in indices], CPU)
            for name, values_N in self._forward.outputs(batch, entropy_gradient=False).items():
                for index, row in zip(indices, batch.spread(values_N).tolist(), strict=True):
                    found[name][index] = row[: len(samples[index].token_ids)]
        return Scores(**found)

    def _save(self, path: Path) -> None:
        self.model.save_pretrained(path)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(path)
        if self._optimizer:
            torch.save(self._optimizer.state_dict(), path / "optimizer.pt")

    def _load(self, path: Path) -> None:
        saved = type(self.model).from_pretrained(path, dtype=self.model.dtype)
        load_in_place(self.model, saved.named_parameters())
        if self._optimizer:
            self._optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))


def load(config: RunConfig, request: ModelRequest) -> PlainBackend:
    torch.manual_seed(config.trainer.seed)
    model = load_model(request.model, CPU, key=request.key)
    return PlainBackend(model, load_tokenizer(request.model), request.actor, request.trainable)


SPEC = BackendSpec(load=load, copy_weights=True)
