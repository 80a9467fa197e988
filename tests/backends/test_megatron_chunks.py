"""Logits computed in chunks, over a vocabulary that tensor parallelism does not divide."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from megatron_models import assert_equal_gradients, expected_gradients, gradients, in_one_process, make_request
from rank_processes import NUM_RANKS, run_again
from tiny_models import VOCAB, make_samples, save_model

from agentrl.algos.losses.policy import PolicyLoss
from agentrl.backends.fsdp.ranks import Ranks
from agentrl.backends.torch import logprobs
from agentrl.errors import ConfigError

pytestmark = pytest.mark.megatron

LAYOUT = {1: "", 2: "tp2", 4: "tp4"}[NUM_RANKS]
COLUMNS = -(-VOCAB // NUM_RANKS)
"""Columns of a process; the last process has fewer that are not padding."""


def set_max_logits(ranks: Ranks, number: int) -> None:
    logprobs.MAX_LOGITS = number


@pytest.fixture
def max_logits(ranks) -> Iterator[Callable[[int], None]]:
    """Sets the limit on all ranks."""

    def change(number: int) -> None:
        ranks.each(set_max_logits, [(number,)] * ranks.size)

    before = logprobs.MAX_LOGITS
    yield change
    change(before)


def test_chunks_of_logits_have_the_gradients_of_one_process(start, max_logits, tmp_path):
    family = "deepseek_v3" if NUM_RANKS == 4 else "qwen3"  # the other has two key-value heads
    request = make_request(save_model(tmp_path, family), LAYOUT)
    backend, alone = start(request), in_one_process(request)
    samples, loss = make_samples(7), PolicyLoss("vanilla")
    expected = expected_gradients(alone, samples, loss)
    max_logits(3 * COLUMNS - 1)  # chunks of two tokens; of three without the last column
    assert_equal_gradients(gradients(backend, samples, loss), expected)


def test_a_vocabulary_that_leaves_a_process_without_columns_is_refused():
    from agentrl.backends.megatron.architecture.build import padded_vocabulary

    layout = SimpleNamespace(tensor_model_parallel_size=4)
    assert padded_vocabulary(SimpleNamespace(vocab_size=VOCAB), layout) == 64
    with pytest.raises(ConfigError, match="the vocabulary of 5 tokens leaves a process without tokens"):
        padded_vocabulary(SimpleNamespace(vocab_size=5), layout)


@pytest.mark.slow
@pytest.mark.skipif("RANKS_OF_TESTS" in os.environ, reason="these are the ranks")
def test_chunks_on_four_ranks():
    run_again(__file__, "4")
