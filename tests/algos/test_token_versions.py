"""Weight versions of sampled tokens: from version spans to the tensors that a loss reads."""

from __future__ import annotations

import torch

from agentrl.algos.credit import samples_of
from agentrl.backends.torch.batches import micro_batch, token_batch
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def model(*spans: tuple[int, int]) -> Segment:
    num_tokens = sum(count for _, count in spans)
    versions = [VersionSpan(*span) for span in spans]
    return Segment(Author.MODEL, [5] * num_tokens, logprobs=[-1.0] * num_tokens, policy_versions=versions)


def samples(*segments: Segment):
    return samples_of([Group(Task([], uid="g"), [Rollout([Trajectory(segments)], Stop.FINISHED, {"score": 1.0})])])


def test_each_token_carries_the_version_that_sampled_it():
    (sample,) = samples(Segment(Author.PROMPT, [1, 2]), model((3, 1), (4, 2)), Segment(Author.TOOL, [7]), model((5, 1)))
    assert sample.policy_versions == [0, 0, 3, 4, 4, 0, 5]
    assert [version > 0 for version in sample.policy_versions] == list(map(bool, sample.loss_mask))


def test_the_first_token_is_not_trained_and_has_none():
    (sample,) = samples(model((3, 2)))
    assert sample.policy_versions == [0, 3]


def test_demonstrations_have_no_policy_version():
    (sample,) = samples(Segment(Author.PROMPT, [1]), Segment(Author.DEMONSTRATION, [2]))
    assert sample.policy_versions is None


def test_loss_reads_the_labels_as_integers():
    both = samples(Segment(Author.PROMPT, [1]), model((3, 1), (2**30 + 1, 1))) + samples(model((7, 2)))
    batch = micro_batch(both, torch.device("cpu"))
    read = token_batch(batch, {"logprobs": torch.zeros(3)}, [1.0, 1.0], 2.0).policy_versions
    assert read is not None
    assert read.tolist() == [[0, 3, 2**30 + 1], [0, 7, 0]]
