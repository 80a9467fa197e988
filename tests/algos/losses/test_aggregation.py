from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos import aggregate, aggregation_weights
from agentrl.algos.losses.aggregation import MODES
from agentrl.errors import ConfigError

VALUES = torch.tensor([[9.0, 1, 2, 3], [9, 4, 9, 9], [1, 1, 1, 1], [5, 5, 5, 5]])
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
ROWS = ["x", "x", "y", "z"]  # z has no trained token


def test_each_mode_written_out_with_one_row_a_sequence():
    expected = {
        "token-mean": (6 + 4 + 4) / 8,
        "seq-mean-token-sum": (6 + 4 + 4) / 3,
        "seq-mean-token-mean": (6 / 3 + 4 / 1 + 4 / 4) / 3,
        "seq-mean-token-sum-norm": (6 + 4 + 4) / 3 / 4,  # the padded width
    }
    for mode, number in expected.items():
        assert aggregate(mode, VALUES, MASK).item() == pytest.approx(number), mode


def test_each_mode_written_out_with_rollouts_of_several_rows():
    expected = {
        "token-mean": 14 / 8,
        "seq-mean-token-sum": 14 / 2,
        "seq-mean-token-mean": ((6 + 4) / 4 + 4 / 4) / 2,
        "seq-mean-token-sum-norm": 14 / 2 / 10,
    }
    for mode, number in expected.items():
        assert aggregate(mode, VALUES, MASK, rollout_ids=ROWS, norm_length=10).item() == pytest.approx(number), mode


@given(data=st.data(), mode=st.sampled_from(MODES))
def test_micro_batches_add_up_for_any_split_and_padding(data: st.DataObject, mode: str):
    rows = data.draw(st.integers(1, 8))
    counts = data.draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    ids = data.draw(st.lists(st.sampled_from("abcde"), min_size=rows, max_size=rows))
    generator = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, 6, dtype=torch.float64, generator=generator)
    mask = torch.arange(6) < torch.tensor(counts)[:, None]
    whole = aggregate(mode, values, mask, rollout_ids=ids, norm_length=7)

    weights, denominator = aggregation_weights(mode, counts, ids, 7)
    cut = data.draw(st.integers(0, rows))
    total = torch.zeros((), dtype=torch.float64)
    for part, pad in ((slice(0, cut), 0), (slice(cut, rows), 3)):
        padded = torch.nn.functional.pad(values[part], (0, pad), value=float("nan"))  # padding may have any value
        padded_mask = torch.nn.functional.pad(mask[part], (0, pad))
        total += aggregate(mode, padded, padded_mask, weights=weights[part], denominator=denominator)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-12)


def test_rows_without_an_id_are_rollouts_of_their_own():
    assert aggregation_weights("seq-mean-token-sum", [1, 1, 1], ["", "", "x"]) == ([1.0] * 3, 3.0)


def test_empty_loss_mask_has_zero_loss_with_gradient():
    values = torch.ones(2, 3, requires_grad=True)
    for mode in MODES:
        loss = aggregate(mode, values, torch.zeros(2, 3))
        loss.backward()
        assert loss.item() == 0
        assert not values.grad.any()


def test_invalid_aggregations_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'token-mean'"):
        aggregation_weights("token_mean", [1])
    with pytest.raises(ConfigError, match="norm_length"):
        aggregation_weights("seq-mean-token-sum-norm", [1])
