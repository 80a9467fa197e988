"""The Megatron backend: rank 0 calls a model that is distributed over all ranks in a parallel layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.backends.base import ModelRequest, Score
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.megatron.platform import prepare, quiet_imports
from agentrl.backends.on_ranks import HeldModel, RankBackend
from agentrl.engines.base import WeightStream
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.merging import adapted_names, merged_weights

if TYPE_CHECKING:
    from agentrl.backends.megatron.layout import Place


class MegatronBackend(RankBackend):
    """See `Backend`. Only rank 0 creates this object, which calls the `MegatronModel` of every rank."""

    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        super().__init__(ranks, request, _loaded, seed)

    def _sample_groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """See `RankBackend._sample_groups`. Processes with the same data-parallel rank compute the same samples."""
        places = self._each(_position, self._number)
        reporting = {place.samples: rank for rank, place in enumerate(places) if place.reports}
        return [place.samples for place in places], [reporting[group] for group in sorted(reporting)]

    def checkpoint_weights(self) -> WeightStream:
        """See `Backend.checkpoint_weights`. With LoRA, yields only layers with an adapter, merged and in float32."""
        if (adapters := self._model.adapters) is None:
            return self._weights(self._model.weights.trained(self._model.weights.checkpoint_names))
        model = adapters.skeleton
        return checkpoint_weights(model, merged_weights(model, self._weights(adapted_names(model))))

    def reference_score(self) -> Score | None:
        """See `Backend.reference_score`."""
        return None if self._model.adapters is None else self._score_base


def _loaded(ranks: Ranks, request: ModelRequest, seed: int) -> HeldModel:
    prepare()
    with quiet_imports():
        from agentrl.backends.megatron.model import MegatronModel  # after `prepare`

    return MegatronModel(ranks, request, seed)


def _position(ranks: Ranks, number: int) -> Place:
    place: Place = ranks.held[number].position
    return place
