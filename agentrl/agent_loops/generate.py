"""Interface that an agent loop uses for sampling: one call per model turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentrl.engines.base import Completion, SamplingParams


class Generate(Protocol):
    """Samples one model turn. A rollout's own `Generate` sets the engine session, deadline and seed of each request."""

    async def __call__(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        trajectory: int = 0,
        images: Sequence[bytes] = (),
        image_starts: Sequence[int] = (),
        draw: int | None = None,
    ) -> Completion:
        """Sample the model turn that follows the context `token_ids`, [T].

        Args:
            trajectory: number that identifies the trajectory; concurrent calls from one loop must pass different
                numbers.
            images: images of the context, in order; the tokens of each image begin at `image_starts`.
            draw: if given, the sampling seed depends on the context and on `draw`; otherwise, on the trajectory and the
                number of its earlier turns. Use `draw` in loops whose turns have no fixed order.
        """
        ...


@runtime_checkable
class Seeded(Protocol):
    """A `Generate` that knows its rollout's seed."""

    seed: int
