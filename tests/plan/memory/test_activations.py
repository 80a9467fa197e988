"""Bytes for each token of a layer, beside those of docs/gpu.md, counted from the tensors that autograd keeps."""

from __future__ import annotations

import pytest
from large_models import config_of
from large_models import shape_of as content_of

from agentrl.plan.counts import shape_of
from agentrl.plan.layout import Layout, layout_of
from agentrl.plan.memory.activations import Kept
from agentrl.plan.memory.precision import Precision
from agentrl.plan.memory.training import Trainer

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


def test_layers_for_multi_token_prediction_count_where_they_are_trained():
    """Beside a layer: inputs of three norms, the projection's input of twice the hidden size, states of the head."""
    content, trained = content_of("deepseek_v3"), "actor.megatron.mtp_loss_scaling_factor=0.1"
    shape, configs = shape_of(content), [config_of("deepseek_v3", *keys) for keys in ((), (trained,))]
    layout = layout_of(configs[0])
    kept = Kept(shape, layout, HALF)
    assert kept.predicting(sparse=True) - kept.layer(sparse=True) == 6 * 2 * 7168 / layout.tensor
    for stage in (0, layout.pipeline - 1):
        without, found = (Trainer(config, shape, layout, stage).phases()["update"] for config in configs)
        assert (found["activations"] > without["activations"]) == (stage > 0)
