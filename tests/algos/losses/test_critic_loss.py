"""The critic loss that a backend runs equals `value_loss`; also the explained variance of the returns."""

from __future__ import annotations

import pytest
import torch

from agentrl.algos.base import TokenBatch
from agentrl.algos.losses.value import ValueLoss, explained_share, value_loss
from agentrl.types.sample import Sample

MASK = torch.tensor([[False, True, True], [False, True, False]])
VALUES, OLD, RETURNS = (
    torch.tensor(rows) for rows in ([[9.0, 1, 2], [9, 0, 9]], [[0.0, 0, 2], [0, 0, 0]], [[5.0, 1, 1], [5, 1, 5]])
)


def batch(**changes: object) -> TokenBatch:
    zeros = torch.zeros(2, 3)
    fields = {"scalars": VALUES, "values": OLD, "returns": RETURNS, "weights": torch.tensor([1.0, 0.5])} | changes
    return TokenBatch(zeros, zeros, MASK, zeros, None, None, None, denominator=7.0, **fields)


@pytest.mark.parametrize("clip", [0.2, 10.0])
def test_critic_loss_equals_the_value_loss_of_trained_tokens(clip: float):
    loss, metrics = ValueLoss(clip)(batch())
    expected, said = value_loss(
        VALUES, RETURNS, OLD, MASK, cliprange_value=clip, weights=torch.tensor([1.0, 0.5]), denominator=7.0
    )
    assert loss == expected
    assert metrics == said
    assert loss == pytest.approx(((0.8**2 if clip < 1 else 0) + 1 + 0.5) / 2 / 7)


def test_model_or_samples_of_another_kind_are_refused():
    for missing in ("scalars", "returns"):
        with pytest.raises(ValueError, match="a scalar head and samples with returns"):
            ValueLoss()(batch(**{missing: None}))


def sample(values: list[float], returns: list[float]) -> Sample:
    return Sample([1, 2, 3], [0, 1, 1], [1.0] * 3, [0.0] * 3, values=[9.0, *values], returns=[-9.0, *returns])


def test_explained_variance_uses_trained_tokens_of_all_samples():
    assert explained_share([sample([1, 2], [1, 2]), sample([3, 4], [3, 4])]) == 1
    assert explained_share([sample([0, 0], [1, 2]), sample([0, 0], [3, 4])]) == 0
    assert explained_share([sample([1, 2], [1, 2]), sample([0, 0], [3, 4])]) == pytest.approx(1 - 3.1875 / 1.25)
    assert explained_share([]) == 0
