"""Requests that every engine refuses."""

from __future__ import annotations

import math

import pytest

from agentrl.engines.base import SamplingParams, check_context, check_sampling


@pytest.mark.parametrize(
    ("token_ids", "complaint"),
    [([], "empty"), ([5, 97], "vocabulary of 97"), ([-1], "vocabulary"), ([5] * 8, "8 tokens and leaves no room in 8")],
)
def test_contexts_without_room_for_a_token_are_refused(token_ids, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_context(token_ids, vocabulary=97, max_sequence_length=8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_p": 2.0},
        {"max_new_tokens": 0},
    ],
    ids=str,
)
def test_senseless_parameters_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        check_sampling(SamplingParams(**wrong))
