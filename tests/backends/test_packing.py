from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.backends.packing import Prompt, pack, pack_shared, split_prompt
from agentrl.samples import Sample

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
LIMITS = st.one_of(st.none(), st.integers(1, 8))
ITEMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=40)
"""(which prompt, own tokens) of samples."""


def test_worked_example():
    assert pack([3, 5, 4, 1], max_tokens=10) == [[1, 2], [0, 3]]


@settings(derandomize=True, deadline=None)
@given(LENGTHS, st.integers(1, 200), LIMITS)
def test_every_sample_once_and_within_the_budget(lengths: list[int], max_tokens: int, max_samples: int | None):
    packs = pack(lengths, max_tokens, max_samples)
    assert sorted(index for indices in packs for index in indices) == list(range(len(lengths)))
    for indices in packs:
        width = max(lengths[index] for index in indices)
        assert len(indices) * width <= max_tokens or len(indices) == 1
        assert max_samples is None or len(indices) <= max_samples


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


def prompts_of(items: list[tuple[int, int]]) -> tuple[list[Prompt], list[int]]:
    """Prompt `number` has number * 4 + 1 tokens."""
    return [(number,) * (number * 4 + 1) for number, _ in items], [num_own for _, num_own in items]


def tokens_of(prompts: list[Prompt], num_own_tokens: list[int], indices: list[int]) -> int:
    """What a micro-batch computes: each of its prompts once, and what each sample has of its own."""
    shared = {prompts[index] for index in indices}
    return sum(map(len, shared)) + sum(num_own_tokens[index] for index in indices)


def test_worked_example_with_shared_prompts():
    prompts = [(1, 1, 1), (1, 1, 1), (2, 2), (1, 1, 1)]
    assert pack_shared(prompts, [1, 2, 4, 5], max_tokens=10) == [[3, 1], [2, 0]]


@settings(derandomize=True, deadline=None)
@given(ITEMS, st.integers(1, 120), LIMITS, st.one_of(st.none(), st.integers(1, 120)))
def test_shared_every_sample_once_and_within_the_budget(items, max_tokens, max_samples, enough_tokens):
    prompts, owns = prompts_of(items)
    packs = pack_shared(prompts, owns, max_tokens, max_samples, enough_tokens)
    assert packs == pack_shared(prompts, owns, max_tokens, max_samples, enough_tokens)
    assert sorted(index for indices in packs for index in indices) == list(range(len(items)))
    for indices in packs:
        num_tokens = tokens_of(prompts, owns, indices)
        assert num_tokens <= max_tokens or len(indices) == 1
        assert max_samples is None or len(indices) <= max_samples
        if enough_tokens is not None and num_tokens > enough_tokens:
            assert len({prompts[index] for index in indices}) == 1


@settings(derandomize=True, deadline=None)
@given(ITEMS, st.integers(1, 120))
def test_samples_of_a_prompt_stay_together_where_they_fit(items, max_tokens):
    prompts, owns = prompts_of(items)
    packs = pack_shared(prompts, owns, max_tokens)
    for prompt in set(prompts):
        members = [index for index, other in enumerate(prompts) if other == prompt]
        holding = [indices for indices in packs if set(indices) & set(members)]
        assert (len(holding) == 1) == (tokens_of(prompts, owns, members) <= max_tokens or len(members) == 1)


@settings(derandomize=True, deadline=None)
@given(ITEMS, st.randoms(use_true_random=False), st.integers(1, 120))
def test_the_shared_sizes_do_not_depend_on_the_order(items, draw, max_tokens):
    sizes = []
    for order in (items, draw.sample(items, len(items))):
        prompts, owns = prompts_of(order)
        sizes.append([tokens_of(prompts, owns, indices) for indices in pack_shared(prompts, owns, max_tokens)])
    assert sizes[0] == sizes[1]


@settings(derandomize=True, deadline=None)
@given(ITEMS, st.integers(1, 8))
def test_without_a_token_budget_every_micro_batch_is_full(items, max_samples: int):
    prompts, owns = prompts_of(items)
    for packs in (pack_shared(prompts, owns, None, max_samples), pack([own + 1 for own in owns], None, max_samples)):
        assert sorted(index for indices in packs for index in indices) == list(range(len(items)))
        assert all(len(indices) == max_samples for indices in packs[:-1])


def test_split_at_the_first_and_the_last_trained_token():
    sample = Sample([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 0], [1.0] * 6, [0.0] * 6)
    assert split_prompt(sample) == ((1, 2), [3, 4])
    assert split_prompt(Sample((1, 2), (0, 1), [1.0] * 2, [0.0] * 2)) == ((1,), ())
