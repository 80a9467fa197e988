"""One forward for decoding rows and prompt tokens together, against plain forwards of each sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import FAMILIES, tiny_model

from agentrl.engines.torch.forward import PagedRunner, Row, Shape
from agentrl.engines.torch.kv_check import random_ids
from agentrl.engines.torch.paged_kv import num_blocks_for
from agentrl.models.attention import learn_windows

LENGTHS = [3 + 5 * number % 29 for number in range(40)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_equal_plain_forwards_in_any_batch(family):
    model = tiny_model(family)
    runner = PagedRunner(model, learn_windows(model))
    sequences = [random_ids(model, length) for length in LENGTHS]
    blocks = np.arange(1, 1 + 2 * len(LENGTHS)).reshape(-1, 2)
    assert num_blocks_for(max(LENGTHS)) == 2
    runner.store.grow(1 + blocks.size)
    before = [Row(ids, 0, len(ids) - 1, own) for ids, own in zip(sequences, blocks, strict=True)]
    last = [Row(ids, len(ids) - 1, len(ids), own) for ids, own in zip(sequences, blocks, strict=True)]
    free = Shape(64, 16, fixed=False)
    runner.prefill(before[:20], free)
    # the other sequences' prefixes are computed in the same forward that decodes their last tokens
    logits = runner.decode(last, free, before[20:])
    plain = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in sequences]
    torch.testing.assert_close(logits, torch.stack(plain), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_copies_of_a_row_have_equal_keys_and_values():
    model = tiny_model("qwen3")
    runner = PagedRunner(model, learn_windows(model))
    short, long = random_ids(model, 9), random_ids(model, 21)
    blocks = np.arange(1, 13).reshape(-1, 2)
    runner.store.grow(1 + blocks.size)
    twin, last = (blocks[1],), len(long)
    rows = [Row(short, 0, 8, blocks[2]), Row(long, 0, 11, blocks[0], twin), Row(long, 11, 18, blocks[0], twin)]
    runner.prefill(rows, Shape(8, 16, fixed=False))
    beside = [Row(short, 8, 9, blocks[2]), Row(long, 18, last - 1, blocks[0], twin)]
    runner.decode([Row(long, last - 1, last, blocks[0], twin)], Shape(8, 1, fixed=False), beside)
    for own, copy in zip(blocks[0], blocks[1], strict=True):
        for stored in runner.store._layers[0] + runner.store._layers[1]:
            assert torch.equal(stored[:, own], stored[:, copy])
            assert stored[:, own].any()
