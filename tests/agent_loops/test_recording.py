"""Which of several answers to one context a rollout refers to."""

from __future__ import annotations

import pytest

from agentrl.agent_loops.recording import Recording
from agentrl.engines.base import Completion, FinishReason, SamplingParams
from agentrl.types.trajectory import VersionSpan

CONTEXT = [1, 2]


def recorded(*answers: tuple[list[int], list[float]]) -> Recording:
    recording = Recording()
    for version, (token_ids, logprobs) in enumerate(answers):
        spans = (VersionSpan(version, len(token_ids)),)
        completion = Completion(token_ids, logprobs, spans, FinishReason.STOP)
        recording.add(CONTEXT, len(CONTEXT), completion, SamplingParams())
    return recording


@pytest.mark.parametrize("meant", [0, 1])
def test_equal_answers_of_different_weights_are_distinguished_by_logprobs(meant):
    logprobs = [[-0.5, -0.25], [-0.75, -0.125]]
    recording = recorded(*(([5, 6], each) for each in logprobs))
    (segment,) = recording.claim([*CONTEXT, 5, 6], 2, 4, logprobs[meant])
    assert (segment.logprobs, segment.policy_versions) == (logprobs[meant], (VersionSpan(meant, 2),))


def test_logprobs_take_precedence_over_length():
    recording = recorded(([5], [-0.5]), ([5, 6], [-0.75, -0.125]))
    (segment,) = recording.claim([*CONTEXT, 5], 2, 3, [-0.75])
    assert segment.policy_versions == [VersionSpan(1, 1)]


def test_full_match_is_preferred_to_partial_match_without_logprobs():
    recording = recorded(([5, 6], [-0.75, -0.125]), ([5], [-0.5]))
    (segment,) = recording.claim([*CONTEXT, 5], 2, 3)
    assert segment.logprobs == [-0.5]
