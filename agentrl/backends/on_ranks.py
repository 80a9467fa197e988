"""Base of backends that distribute a model over all ranks (FSDP, Megatron).

Rank 0 assigns samples to the ranks, and collects their results and weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from agentrl.algos.base import LossFunction
from agentrl.backends.base import ModelRequest, Score, Scores, StepStats
from agentrl.backends.fsdp.assignment import assign, imbalance
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.shared_memory import HeldWeights, collected
from agentrl.backends.torch.checkpoint import new_folder
from agentrl.backends.torch.gradients import MiniBatch, mini_batch
from agentrl.backends.torch.recorded_experts import replayed_share, without_experts
from agentrl.engines.base import WeightStream
from agentrl.types.sample import Sample

Result = TypeVar("Result")


class HeldModel(HeldWeights, Protocol):
    """The part of a model on one rank. All ranks call each method at the same time."""

    @property
    def vocabulary_size(self) -> int: ...  # noqa: D102  # see `Backend`
    @property
    def max_positions(self) -> int | None: ...  # noqa: D102

    def accumulate(self, batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> dict[str, float]:
        """Accumulate the gradient of this rank's samples (indices `own` of `batch`); return this rank's metrics."""
        ...

    def update(self) -> dict[str, float]:
        """Do one update with the accumulated gradients of all ranks; see `ScheduledOptimizer.step`."""
        ...

    def score_part(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        """Score this rank's samples; with `base`, under the base model of the adapter."""
        ...

    def copy_part(self, source: Any, names: Sequence[str]) -> None:  # Any: a model of the same class
        """Copy the named weights from `source`, a model of the same shape on the same ranks."""
        ...

    def place(self, weights: dict[str, Tensor]) -> None:
        """Overwrite this rank's parts of the model with values from the complete weights `weights`."""
        ...

    @property
    def saving(self) -> Future[None]:
        """Future of the checkpoint that `begin_writing` writes; done when all ranks have written their parts."""
        ...

    def save_part(self, folder: Path, ranks: Ranks) -> None:
        """Write this rank's part of a checkpoint."""
        ...

    def begin_writing(self, folder: Path, ranks: Ranks) -> None:
        """Copy the state to CPU memory, and write the copy in the background; see `saving`."""
        ...

    def load_part(self, folder: Path) -> None:
        """Read this rank's part of a checkpoint; see `Backend.load`."""
        ...

    def free(self) -> None:
        """End reference cycles that Python cannot find, so that the memory is freed. No method is called afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class RankWeights:
    """Weights of a distributed model. Each iteration collects them again on rank 0; see `StreamedWeights`."""

    ranks: Ranks
    number: int
    names: Sequence[str]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in self.passing():
            yield name, value.clone()

    def shapes(self) -> dict[str, torch.Size]:
        """See `StreamedWeights.shapes`."""
        facts = self._facts()
        return {name: facts[name].shape for name in self.names}

    def num_bytes(self) -> int:
        """See `StreamedWeights.num_bytes`."""
        facts = self._facts()
        return sum(facts[name].num_bytes for name in self.names)

    def passing(self) -> Iterator[tuple[str, Tensor]]:
        """See `StreamedWeights.passing`."""
        return collected(self.ranks, self.number, self.names)

    def _facts(self) -> Any:  # Any: names -> `WeightFacts`
        return self.ranks.held[self.number].facts()


class RankBackend:
    """See `Backend`. Only rank 0 creates this object, which calls the `HeldModel` of every rank.

    Args:
        load: creates the `HeldModel` of a rank from (ranks, request, seed); a function or class that can be pickled.
    """

    def __init__(self, ranks: Ranks, request: ModelRequest, load: Callable[..., HeldModel], seed: int) -> None:
        self._ranks, self._number = ranks, next(ranks.numbers)
        self._request = request
        self._each(_load, self._number, load, request, seed)
        self._model: Any = ranks.held[self._number]  # Any: the class that `load` returns
        self._group_of, self._reporting = self._sample_groups()

    def _sample_groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the group number of each rank, and for each group the rank that reports results.

        The ranks of a group compute the same samples.
        """
        everyone = range(self._ranks.size)
        return everyone, everyone

    @property
    def vocabulary_size(self) -> int:
        """See `Backend.vocabulary_size`."""
        size: int = self._model.vocabulary_size
        return size

    @property
    def max_positions(self) -> int | None:
        """See `Backend.max_positions`."""
        most: int | None = self._model.max_positions
        return most

    async def train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        """See `Backend.train_step`. The metric `rank_imbalance` is the maximum tokens per rank, divided by the mean."""
        return await self._run(lambda: self._train_step(self._replayed(samples), loss))

    async def score(self, samples: Sequence[Sample]) -> Scores:
        """See `Backend.score`."""
        given = without_experts(samples) if self._request.routed_by == "actor" else self._replayed(samples)
        return await self._run(lambda: self._score(given))

    def reference_score(self) -> Score | None:
        """See `Backend.reference_score`."""
        return None

    def weights(self) -> WeightStream:
        """See `Backend.weights`. Each weight is a complete copy in CPU memory."""
        return self._weights(self._model.changing_names)

    async def copy_weights(self, weights: WeightStream) -> None:
        """See `Backend.copy_weights`."""
        await self._run(lambda: self._copy(weights))

    async def save(self, path: Path) -> None:
        """See `Backend.save`. Every rank writes its part."""

        def work() -> None:
            with new_folder(path) as aside:
                self._save(aside)

        await self._run(work)

    async def begin_save(self, path: Path) -> Future[None]:
        """See `Backend.begin_save`. Every rank copies and writes its part."""
        await self._run(lambda: self._each(_begin_save, self._number, path))
        saving: Future[None] = self._model.saving
        return saving

    async def load(self, path: Path) -> None:
        """See `Backend.load`. Any number of ranks may have written the checkpoint."""
        await self._run(lambda: self._each(_call, self._number, "load_part", path))

    async def close(self) -> None:
        """Free the model on every rank. A second call does nothing."""
        if self._number in self._ranks.held:
            self._model = None  # else rank 0 would keep the model's memory and process groups
            await self._run(lambda: self._each(_free, self._number))

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._ranks.thread, work)

    def _each(self, function: Callable[..., Result], *arguments: object) -> list[Result]:
        return self._ranks.each(function, [arguments] * self._ranks.size)

    def _each_group(self, function: Callable[..., Result], arguments: Sequence[tuple[object, ...]]) -> list[Result]:
        """Call `function` on all ranks with the arguments of their groups; return the reporting ranks' results."""
        found = self._ranks.each(function, [arguments[group] for group in self._group_of])
        return [found[rank] for rank in self._reporting]

    def _weights(self, names: Sequence[str]) -> RankWeights:
        return RankWeights(self._ranks, self._number, names)

    def _replayed(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        return samples if self._request.routed_by else without_experts(samples)

    def _train_step(self, samples: Sequence[Sample], loss: LossFunction) -> StepStats:
        if not self._request.trainable:
            raise RuntimeError("this backend was loaded with trainable=False")
        batch = mini_batch(samples, loss)
        if not batch.num_tokens:
            return StepStats({"num_tokens": 0.0, "num_micro_batches": 0.0, "skipped_updates": 1.0})
        groups = assign(samples, len(self._reporting), loss.scope)
        parts = [_part(batch, own, loss) for own in groups]
        found = self._each_group(_train, [(self._number, *part, loss) for part in parts])
        metrics = _summed([metrics for metrics, _ in found], whole=loss.scope == "batch")
        counts = {"num_tokens": float(batch.num_tokens), "rank_imbalance": imbalance(samples, groups)}
        if self._request.routed_by:
            counts["replayed_share"] = replayed_share(samples)
        return StepStats(metrics | counts | found[0][1])

    def _score(self, samples: Sequence[Sample], *, base: bool = False) -> Scores:
        groups = assign(samples, len(self._reporting))
        parts = [(self._number, [samples[index] for index in own], base) for own in groups]
        return _in_order(self._each_group(_score, parts), groups)

    async def _score_base(self, samples: Sequence[Sample]) -> Scores:
        """Score under the base model of the adapter; see `Backend.reference_score`."""
        return await self._run(lambda: self._score(without_experts(samples), base=True))

    def _save(self, folder: Path) -> None:
        self._each(_save, self._number, folder)

    def _copy(self, weights: WeightStream) -> None:
        if isinstance(weights, RankWeights):  # each rank copies its part from model to model
            self._each(_copy, self._number, weights.number, weights.names)
            return
        for name, value in weights:
            self._each(_place, self._number, {name: value.cpu()})


def _part(batch: MiniBatch, own: Sequence[int], loss: LossFunction) -> tuple[MiniBatch, Sequence[int]]:
    """Return a rank's mini-batch (all samples for scope "batch"), and the indices of the rank's samples in it."""
    return (batch, own) if loss.scope == "batch" else (batch.part(own), range(len(own)))


def _summed(parts: Sequence[dict[str, float]], *, whole: bool) -> dict[str, float]:
    """Sum the ranks' metrics; if `whole`, only `num_micro_batches`, because other metrics are complete on each rank."""
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

    def joined(field: Callable[[Scores], list[Result] | None]) -> list[Result]:
        rows: dict[int, Result] = {}
        for own, part in zip(ranks, parts, strict=True):
            rows |= dict(zip(own, field(part) or (), strict=False))  # a critic has no log-probabilities
        return [rows[index] for index in sorted(rows)]

    scalar = any(part.values is not None for part in parts)
    routed = any(part.routed_experts is not None for part in parts)
    return Scores(
        joined(lambda part: part.logprobs),
        joined(lambda part: part.entropy),
        joined(lambda part: part.values) if scalar else None,
        joined(lambda part: part.routed_experts) if routed else None,
    )


def _load(ranks: Ranks, number: int, load: Callable[..., HeldModel], request: ModelRequest, seed: int) -> None:
    ranks.held[number] = load(ranks, request, seed)


def _train(
    ranks: Ranks, number: int, batch: MiniBatch, own: Sequence[int], loss: LossFunction
) -> tuple[dict[str, float], dict[str, float]]:
    model: HeldModel = ranks.held[number]
    return model.accumulate(batch, own, loss), model.update()


def _score(ranks: Ranks, number: int, samples: Sequence[Sample], base: bool) -> Scores:
    model: HeldModel = ranks.held[number]
    return model.score_part(samples, base=base)


def _place(ranks: Ranks, number: int, weights: dict[str, Tensor]) -> None:
    ranks.held[number].place(weights)


def _copy(ranks: Ranks, number: int, source: int, names: Sequence[str]) -> None:
    ranks.held[number].copy_part(ranks.held[source], names)


def _save(ranks: Ranks, number: int, folder: Path) -> None:
    ranks.held[number].save_part(folder, ranks)


def _begin_save(ranks: Ranks, number: int, folder: Path) -> None:
    ranks.held[number].begin_writing(folder, ranks)


def _call(ranks: Ranks, number: int, method: str, *arguments: object) -> None:
    getattr(ranks.held[number], method)(*arguments)


def _free(ranks: Ranks, number: int) -> None:
    ranks.held.pop(number).free()
