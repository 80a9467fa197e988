"""Bytes for each token of a layer, beside those of docs/gpu.md, counted from the tensors that autograd keeps."""

from __future__ import annotations

import pytest

from agentrl.plan.counts import shape_of
from agentrl.plan.layout import Layout
from agentrl.plan.memory.activations import Kept
from agentrl.plan.memory.precision import Precision

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
HALF, SINGLE, MIXED = Precision(2, 2), Precision(4, 4), Precision(4, 2)


@pytest.mark.parametrize(
    ("precision", "rank", "expected"),
    [
        *((MIXED, 0, 66_368), (HALF, 0, 57_408), (SINGLE, 0, 107_584)),
        *((MIXED, 16, 59_424), (HALF, 16, 54_048), (SINGLE, 16, 100_864)),
    ],
)
def test_a_layer_keeps_the_counted_bytes(precision, rank, expected):
    kept = Kept(shape_of(QWEN), Layout(kind="torch"), precision, rank)
    assert kept.layer(sparse=False) == pytest.approx(expected, rel=0.001)


def test_complete_recomputation_keeps_the_input_of_a_layer():
    assert Kept(shape_of(QWEN), Layout(kind="torch"), HALF).boundary == 2 * 896
    assert Kept(shape_of(QWEN), Layout(kind="torch"), MIXED).boundary == 4 * 896
