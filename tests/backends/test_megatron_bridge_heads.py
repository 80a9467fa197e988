"""Critics and reward models whose other weights megatron-bridge maps equal those of one process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from megatron_models import assert_equal_gradients, expected_gradients, gradients, in_one_process, make_request
from rank_processes import NUM_RANKS, run_again
from test_megatron_bridge import save_other
from test_megatron_heads import LOSS, assert_equal_values, assert_equal_weights
from tiny_models import make_samples, save_model, with_returns
from transformers import AutoModelForSequenceClassification

pytestmark = pytest.mark.megatron

LAYOUTS = {
    1: {"": ("gemma", "mistral"), "bridge": ("qwen3_moe",)},
    2: {"tp2": ("gemma", "mistral"), "pp2": ("gemma",), "dp": ("mistral",), "ep2 bridge": ("qwen3_moe",)},
    4: {"tp2 pp2": ("gemma", "mistral"), "tp2 ep2 etp1 bridge": ("deepseek_v3",)},
}[NUM_RANKS]


def with_a_head(path: Path, family: str) -> Path:
    save = save_other if family in ("gemma", "mistral") else save_model
    model = AutoModelForSequenceClassification.from_pretrained(save(path / "language", family), num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path / "scalar")
    return path / "scalar"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [f"{family}: {layout}" for layout, of in LAYOUTS.items() for family in of])
def test_a_head_beside_weights_that_the_bridge_maps(start, tmp_path, case):
    family, layout = case.split(": ")
    request = replace(make_request(with_a_head(tmp_path, family), layout), value_head=True)
    backend, alone = start(request), in_one_process(request)
    assert_equal_weights(dict(backend.weights()), dict(alone.weights()))
    assert_equal_weights(dict(backend.checkpoint_weights()), dict(alone.checkpoint_weights()))
    assert_equal_values(backend, alone)
    samples = with_returns(make_samples(7))
    assert_equal_gradients(gradients(backend, samples, LOSS), expected_gradients(alone, samples, LOSS))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1", "4"])
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_heads_on_other_numbers_of_ranks(size):
    run_again(__file__, size)
