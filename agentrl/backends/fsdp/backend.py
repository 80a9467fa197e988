"""The torch backend on several ranks, over which the model is sharded."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.backends.base import ModelRequest, Score
from agentrl.backends.fsdp.model import ShardedModel
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.on_ranks import RankBackend
from agentrl.engines.base import WeightStream
from agentrl.models.adapters import has_adapter
from agentrl.models.checkpoint_names import checkpoint_weights
from agentrl.models.merging import adapted_names, merged_weights


class FsdpBackend(RankBackend):
    """See `Backend`. Only rank 0 creates this object, which calls the `ShardedModel` of every rank."""

    def __init__(self, ranks: Ranks, request: ModelRequest, seed: int) -> None:
        super().__init__(ranks, request, ShardedModel, seed)

    def _sample_groups(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return each rank's sequence-parallel group, and each group's first rank, which reports the results."""
        size = self._request.actor.ulysses_sequence_parallel_size
        return [rank // size for rank in range(self._ranks.size)], range(0, self._ranks.size, size)

    def reference_score(self) -> Score | None:
        """See `Backend.reference_score`."""
        return self._score_base if has_adapter(self._model.model) else None

    def checkpoint_weights(self) -> WeightStream:
        """See `Backend.checkpoint_weights`."""
        model = self._model.model
        if has_adapter(model):
            return checkpoint_weights(model, merged_weights(model, self._weights(adapted_names(model))))
        return checkpoint_weights(model, self.weights())
