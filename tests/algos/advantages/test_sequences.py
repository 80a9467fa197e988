from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.sequences import Sequences, discounted_sums, find_sequences, find_steps, find_turns

# rollout x: a call [t t], the tool [. .], an answer [t], then a second row; y is the row between them
MASK = torch.tensor([[0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0]]).bool()
NUMBERS = torch.arange(18.0).reshape(3, 6)


def sequences(valid: tuple[bool, ...] = (True, True, True)) -> Sequences:
    batch = AdvantageBatch(torch.zeros(3, 6), MASK, ["a"] * 3, ["x", "y", "x"], valid)
    return find_sequences(batch, find_members(batch))


def test_the_rows_of_a_rollout_are_one_sequence_of_trained_tokens():
    found = sequences()
    assert found.of_tokens(NUMBERS).tolist() == [[1, 2, 5, 14, 15], [7, 8, 9, 0, 0]]
    assert found.there.tolist() == [[True] * 5, [True, True, True, False, False]]
    assert torch.equal(found.spread(found.of_tokens(NUMBERS)), torch.where(MASK, NUMBERS, 0.0).double())


def test_observations_belong_to_the_token_before():
    assert sequences().sums(torch.ones(3, 6)).tolist() == [[2, 3, 3, 1, 3], [2, 1, 3, 0, 0]]


def test_turns_and_steps_are_found():
    turns = find_turns(sequences())
    assert turns.of_token.tolist() == [[0, 0, 1, 2, 2], [0, 0, 0, 0, 0]]
    assert turns.there.tolist() == [[True, True, True], [True, False, False]]
    assert turns.last.tolist() == [[False, False, True], [True, False, False]]
    ends = torch.zeros(3, 6).bool()
    ends[0, 1] = ends[1, 2] = ends[2, 3] = ends[2, 5] = True
    steps = find_steps(sequences(), ends)
    assert steps.of_token.tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert steps.sums(sequences().of_tokens(torch.ones(3, 6))).tolist() == [[1, 4], [2, 1]]


def test_a_failed_rollout_has_no_tokens():
    found = sequences((True, True, False))
    assert found.there.tolist() == [[False] * 3, [True] * 3]
    assert not found.spread(torch.ones(2, 3).double())[[0, 2]].any()


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.floats(0, 1))
def test_discounted_sums_equal_their_formula(values: list[float], discount: float):
    expected = [sum(v * discount**n for n, v in enumerate(values[k:])) for k in range(len(values))]
    found = discounted_sums(torch.tensor([values], dtype=torch.float64), discount)[0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
