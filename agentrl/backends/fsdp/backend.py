"""The torch backend on all ranks: rank 0 hands out samples, collects results and reads weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Score, Scores, StepStats
from agentrl.backends.fsdp.assignment import assign, imbalance
from agentrl.backends.fsdp.checkpoint import write_checkpoint
from agentrl.backends.fsdp.model import ShardedModel
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.fsdp.sharding import place
from agentrl.backends.fsdp.shared_memory import collected
from agentrl.backends.torch.checkpoint import new_folder
from agentrl.backends.torch.gradients import MiniBatch, mini_batch
from agentrl.backends.torch.recorded_experts import replayed_share, without_experts
from agentrl.engines.base import WeightStream
from agentrl.models.adapters import has_adapter
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.merging import adapted_names, merged_weights
from agentrl.types.sample import Sample

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of a sharded model, collected while they are read; see `StreamedWeights`. Can be read several times."""

    ranks: Ranks
    number: int
    names: Sequence[str]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.passing():
            yield name, value.clone()

    def shapes(self) -> dict[str, torch.Size]:
        """See `StreamedWeights.shapes`."""
        weights = self.ranks.held[self.number].named_weights()
        return {name: weights[name].shape for name in self.names}

    def num_bytes(self) -> int:
        """See `StreamedWeights.num_bytes`."""
        weights = self.ranks.held[self.number].named_weights()
        return sum(weights[name].shape.numel() * weights[name].element_size() for name in self.names)

    def passing(self) -> Iterator[tuple[str, Tensor]]:
        """See `StreamedWeights.passing`."""
        return collected(self.ranks, self.number, self.names)


class FsdpBackend:
    """See `Backend`. Only rank 0 has one; it calls a `ShardedModel` on every rank."""

    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        self._ranks, self._number = ranks, next(ranks.numbers)
        self._request = request
        self._sequence_size = request.actor.ulysses_sequence_parallel_size
        self._num_groups = ranks.size // self._sequence_size
        self._each(_load, self._number, request, seed)
        self._model: ShardedModel = ranks.held[self._number]

    @property
    def vocabulary_size(self) -> int:
        """See `Backend.vocabulary_size`."""
        return self._model.vocabulary_size

    @property
    def max_positions(self) -> int | None:
        """See `Backend.max_positions`."""
        return self._model.max_positions

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """See `Backend.train_step`. Metrics have `rank_imbalance`: most tokens on one rank, over the mean."""
        return await self._run(lambda: self._train_step(self._replayed(samples), loss))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """See `Backend.score`."""
        return await self._run(lambda: self._score(self._replayed(samples)))

    def reference_score(self) -> Score | None:
        """See `Backend.reference_score`."""
        return self._score_base if has_adapter(self._model.model) else None

    async def _score_base(self, samples: Sequence[Sample]) -> Scores:
        return await self._run(lambda: self._score(without_experts(samples), base=True))

    def weights(self) -> WeightStream:
        """See `Backend.weights`. Each weight is a complete copy in CPU memory."""
        return self._weights(self._model.changing_names)

    def checkpoint_weights(self) -> WeightStream:
        """See `Backend.checkpoint_weights`."""
        model = self._model.model
        if has_adapter(model):
            return checkpoint_weights(model, merged_weights(model, self._weights(adapted_names(model))))
        return checkpoint_weights(model, self.weights())

    async def copy_weights(self, weights: WeightStream) -> None:
        """See `Backend.copy_weights`."""
        await self._run(lambda: self._copy(weights))

    async def save(self, path: Path) -> None:
        """See `Backend.save`. Rank 0 writes the weights, every rank its part of the optimizer state."""

        def work() -> None:
            with new_folder(path) as aside:
                self._each(_save, self._number, aside)

        await self._run(work)

    async def begin_save(self, path: Path) -> Future[None]:
        """See `Backend.begin_save`. Every rank copies its part."""
        await self._run(lambda: self._each(_begin_save, self._number, path))
        return self._model.saving

    async def load(self, path: Path) -> None:
        """See `Backend.load`; the checkpoint may come from any number of ranks."""
        await self._run(lambda: self._each(_call, self._number, "load_part", path))

    async def close(self) -> None:
        """Free the model on every rank. A second call does nothing."""
        if self._number in self._ranks.held:
            await self._run(lambda: self._each(_free, self._number))

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._ranks.thread, work)

    def _each(self, function: Callable[..., Result], *arguments: object) -> list[Result]:
        return self._ranks.each(function, [arguments] * self._ranks.size)

    def _each_group(self, function: Callable[..., Result], arguments: Sequence[tuple[object, ...]]) -> list[Result]:
        """Give each group of ranks its arguments; return the result of the first rank of each group."""
        of_ranks = [own for own in arguments for _ in range(self._sequence_size)]
        return self._ranks.each(function, of_ranks)[:: self._sequence_size]

    def _weights(self, names: Sequence[str]) -> RankWeights:
        return RankWeights(self._ranks, self._number, names)

    def _replayed(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        return samples if self._request.routed_experts else without_experts(samples)

    def _train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        if not self._request.trainable:
            raise RuntimeError("this backend was loaded with trainable=False")
        batch = mini_batch(samples, loss)
        if not batch.num_tokens:
            return StepStats({"num_tokens": 0.0, "num_micro_batches": 0.0, "skipped_updates": 1.0})
        ranks = assign(samples, self._num_groups, loss.scope)
        parts = [_part(batch, own, loss) for own in ranks]
        found = self._each_group(_train, [(self._number, *part, loss) for part in parts])
        metrics = _summed([metrics for metrics, _ in found], whole=loss.scope == "batch")
        counts = {"num_tokens": float(batch.num_tokens), "rank_imbalance": imbalance(samples, ranks)}
        if self._request.routed_experts:
            counts["replayed_share"] = replayed_share(samples)
        return StepStats(metrics | counts | found[0][1])

    def _score(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        ranks = assign(samples, self._num_groups)
        parts = [(self._number, [samples[index] for index in own], base) for own in ranks]
        return _in_order(self._each_group(_score, parts), ranks)

    def _copy(self, weights: WeightStream) -> None:
        if isinstance(weights, RankWeights):  # every rank has its part of both models
            self._each(_copy, self._number, weights.number, weights.names)
            return
        for name, value in weights:
            self._each(_place, self._number, {name: value.cpu()})


def _part(batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> tuple[MiniBatch, Sequence[int]]:
    """What a rank needs of a mini-batch: all of it if the loss needs all samples together."""
    return (batch, own) if loss.scope == "batch" else (batch.part(own), range(len(own)))


def _summed(parts: Sequence[dict[str, float]], *, whole: bool) -> dict[str, float]:
    """Join the metrics of the ranks; with `whole`, each rank has computed those of the complete mini-batch."""
    found: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            if name.endswith("/max"):
                found[name] = max(value, found.get(name, value))
            elif not whole or name == "num_micro_batches":
                found[name] = found.get(name, 0.0) + value
            else:
                found[name] = value
    return found


def _in_order(parts: Sequence[Scores], ranks: Sequence[Sequence[int]]) -> Scores:
    """Join the scores of the ranks in the order of the samples."""

    def joined(field: Callable[[Scores], list[list[float]] | None]) -> list[list[float]]:
        rows: dict[int, list[float]] = {}
        for own, part in zip(ranks, parts, strict=True):
            rows |= dict(zip(own, field(part) or (), strict=False))  # a critic has no log-probabilities
        return [rows[index] for index in sorted(rows)]

    scalar = any(part.values is not None for part in parts)
    return Scores(
        joined(lambda part: part.logprobs),
        joined(lambda part: part.entropy),
        joined(lambda part: part.values) if scalar else None,
    )


def _load(ranks: Ranks, number: int, request: ModelRequest, seed: int) -> None:
    ranks.held[number] = ShardedModel(ranks, request, seed)


def _train(
    ranks: Ranks, number: int, batch: MiniBatch, own: Sequence[int], loss: LossFunction
) -> tuple[dict[str, float], dict[str, float]]:
    model: ShardedModel = ranks.held[number]
    return model.accumulate(batch, own, loss), model.update()


def _score(ranks: Ranks, number: int, samples: Sequence[Sample], base: bool) -> Scores:
    model: ShardedModel = ranks.held[number]
    return model.score_part(samples, base=base)


def _place(ranks: Ranks, number: int, weights: dict[str, Tensor]) -> None:
    place(ranks.held[number].named_weights(), weights)


def _copy(ranks: Ranks, number: int, source: int, names: Sequence[str]) -> None:
    ranks.held[number].copy_part(ranks.held[source], names)


def _save(ranks: Ranks, number: int, folder: Path) -> None:
    write_checkpoint(folder, ranks.held[number].saved_state(), ranks.control)


def _begin_save(ranks: Ranks, number: int, folder: Path) -> None:
    ranks.held[number].begin_writing(folder, ranks)


def _call(ranks: Ranks, number: int, method: str, *arguments: object) -> None:
    getattr(ranks.held[number], method)(*arguments)


def _free(ranks: Ranks, number: int) -> None:
    del ranks.held[number]
