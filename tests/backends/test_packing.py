from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.backends.packing import pack

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


def test_worked_example():
    assert pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]


@settings(derandomize=True, deadline=None)
@given(LENGTHS, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 8)))
def test_every_sample_once_and_within_the_budget(lengths: list[int], max_tokens: int, max_rows: int | None):
    packs = pack(lengths, max_tokens, max_rows)
    assert sorted(index for indices in packs for index in indices) == list(range(len(lengths)))
    for indices in packs:
        width = max(lengths[index] for index in indices)
        assert len(indices) * width <= max_tokens or len(indices) == 1
        assert max_rows is None or len(indices) <= max_rows


@settings(derandomize=True, deadline=None)
@given(LENGTHS, st.integers(1, 200))
def test_no_two_neighbours_would_fit_together(lengths: list[int], max_tokens: int):
    packs = pack(lengths, max_tokens)
    for one, other in itertools.pairwise(packs):
        assert (len(one) + 1) * lengths[one[0]] > max_tokens
        assert lengths[one[-1]] >= lengths[other[0]]


@settings(derandomize=True, deadline=None)
@given(LENGTHS, st.randoms(use_true_random=False))
def test_the_shapes_do_not_depend_on_the_order(lengths: list[int], draw):
    shuffled = draw.sample(lengths, len(lengths))
    shapes = [[lengths[index] for index in indices] for indices in pack(lengths, 64)]
    assert shapes == [[shuffled[index] for index in indices] for indices in pack(shuffled, 64)]
