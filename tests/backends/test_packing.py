from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl.backends.packing import IntArray, num_common, pack, pack_shared, sorted_by_prefix, used_tokens
from agentrl.types.sample import Sample

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
LIMITS = st.one_of(st.none(), st.integers(1, 8))
SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=12), max_size=20)
"""Few different tokens, so that many sequences share a prefix."""


def test_packing_equals_the_worked_example():
    assert pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]


@given(LENGTHS, st.integers(1, 200), LIMITS)
def test_every_sample_once_and_within_the_budget(lengths: list[int], max_tokens: int, max_samples: int | None):
    packs = pack(lengths, max_tokens, max_samples)
    assert sorted(index for indices in packs for index in indices) == list(range(len(lengths)))
    for indices in packs:
        width = max(lengths[index] for index in indices)
        assert len(indices) * width <= max_tokens or len(indices) == 1
        assert max_samples is None or len(indices) <= max_samples


@given(LENGTHS, st.integers(1, 200))
def test_adjacent_micro_batches_do_not_fit_into_one(lengths: list[int], max_tokens: int):
    packs = pack(lengths, max_tokens)
    for one, other in itertools.pairwise(packs):
        assert (len(one) + 1) * lengths[one[0]] > max_tokens
        assert lengths[one[-1]] >= lengths[other[0]]


@given(LENGTHS, st.randoms(use_true_random=False))
def test_the_shapes_do_not_depend_on_the_order(lengths: list[int], draw):
    shuffled = draw.sample(lengths, len(lengths))
    shapes = [[lengths[index] for index in indices] for indices in pack(lengths, 64)]
    assert shapes == [[shuffled[index] for index in indices] for indices in pack(shuffled, 64)]


def arrays(sequences: list[list[int]]) -> list[IntArray]:
    return [np.array(tokens) for tokens in sequences]


def tree_size(sequences: list[list[int]]) -> int:
    """The number of distinct prefixes, which is the number of tokens that must be computed."""
    return len({tuple(tokens[: end + 1]) for tokens in sequences for end in range(len(tokens))})


def memory(sequences: list[list[int]], keys_per_token: int) -> int:
    """Memory in tokens: computed tokens, plus a row of keys for each sequence that continues another one's prefix."""
    ordered = sorted(sequences)
    pairs = zip([[], *ordered], ordered, strict=False)
    looking = [own for before, own in pairs if 0 < num_common(*arrays([before, own])) < len(own)]
    return tree_size(sequences) + len(looking) * max(map(len, looking), default=0) // keys_per_token


def test_worked_example_with_shared_beginnings():
    sequences = arrays([[1, 1, 1, 5], [1, 1, 1, 6, 6], [2, 2], [1, 1, 1, 5, 7, 7, 7]])
    assert pack_shared(sequences, max_tokens=9) == [[0, 3, 1], [2]]
    assert pack_shared(sequences, max_tokens=8) == [[0, 3], [1, 2]]


def test_copied_keys_are_in_the_budget():
    sequences = arrays([[*range(100), own] for own in range(200, 232)])  # 132 tokens, 31 rows of 101 keys
    assert [len(members) for members in pack_shared(sequences, max_tokens=132 + 31 * 101 // 16)] == [32]
    assert [len(members) for members in pack_shared(sequences, max_tokens=132 + 31 * 101 // 16 - 1)] == [31, 1]
    assert [len(members) for members in pack_shared(sequences, max_tokens=201, keys_per_token=64)] == [32]
    assert pack_shared([sequences[0]] * 9, max_tokens=101) == [[*range(9)]]  # computed once, attended to once


@given(SEQUENCES, st.integers(1, 40), LIMITS, st.one_of(st.none(), st.integers(1, 40)), st.sampled_from([2, 16]))
def test_shared_every_sample_once_and_within_the_budget(sequences, max_tokens, max_samples, enough_tokens, keys):
    packs = pack_shared(arrays(sequences), max_tokens, max_samples, enough_tokens, keys)
    assert sorted(index for indices in packs for index in indices) == list(range(len(sequences)))
    sizes = [memory([sequences[index] for index in indices], keys) for indices in packs]
    assert sizes == sorted(sizes, reverse=True)
    for size, indices in zip(sizes, packs, strict=True):
        assert size <= max_tokens or len(indices) == 1
        assert max_samples is None or len(indices) <= max_samples
        computed = tree_size([sequences[index] for index in indices])
        if enough_tokens is not None and computed > enough_tokens and len(indices) > 1:
            last = sequences[indices[-1]]  # it shares more tokens than it adds
            assert 2 * num_common(*arrays([sequences[indices[-2]], last])) > len(last)


@given(SEQUENCES, st.randoms(use_true_random=False), st.integers(1, 40))
def test_the_shared_sizes_do_not_depend_on_the_order(sequences, draw, max_tokens):
    sizes = []
    for order in (sequences, draw.sample(sequences, len(sequences))):
        packs = pack_shared(arrays(order), max_tokens)
        sizes.append([tree_size([order[index] for index in indices]) for indices in packs])
    assert sizes[0] == sizes[1]


@given(SEQUENCES)
def test_packed_samples_form_one_prefix_tree(sequences):
    assert pack_shared(arrays(sequences), None) == ([sorted_by_prefix(arrays(sequences))] if sequences else [])
    assert [sequences[index] for index in sorted_by_prefix(arrays(sequences))] == sorted(sequences)


@given(SEQUENCES, st.integers(1, 8))
def test_without_a_token_budget_every_micro_batch_is_full(sequences, max_samples: int):
    lengths = [len(tokens) for tokens in sequences]
    for packs in (pack_shared(arrays(sequences), None, max_samples), pack(lengths, None, max_samples)):
        assert sorted(index for indices in packs for index in indices) == list(range(len(sequences)))
        assert sorted(map(len, packs), reverse=True)[:-1] == [max_samples] * (len(packs) - 1)


def test_tokens_from_the_last_trained_one_on_are_not_used():
    sample = Sample([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 0], [1.0] * 6, [0.0] * 6)
    assert used_tokens(sample).tolist() == [1, 2, 3, 4]
    assert used_tokens(Sample((1, 2), (0, 1), [1.0] * 2, [0.0] * 2)).tolist() == [1]
