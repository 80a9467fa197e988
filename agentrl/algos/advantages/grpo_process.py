"""GRPO with process supervision: step rewards, standardised over the group (DeepSeekMath, arXiv:2402.03300)."""

from __future__ import annotations

from torch import Tensor

from agentrl.algos.advantages.members import AdvantageBatch, find_members
from agentrl.algos.advantages.normalization import standardised_in_groups
from agentrl.algos.advantages.sequences import Sequences, Spans, discounted_sums, find_sequences, find_steps, find_turns


def grpo_process(batch: AdvantageBatch, *, norm_adv_by_std: bool = True) -> tuple[Tensor, Tensor]:
    """A_t = sum of the standardised rewards of the steps that end at or after t.

    A step's reward is the sum of `turn_rewards` and `token_rewards` on its tokens, so the outcome belongs to the last
    step. Step rewards are standardised over all steps of all valid rollouts of the group. Steps end at `step_ends`, or
    if it is None, at the end of each turn. If `turn_rewards` is also None, the rollout is one step, as in GRPO.
    Example: two rollouts of two steps, step rewards 1, 0 and 0, 0; mean 0.25, std 0.5, standardised 1.5, -0.5 and -0.5,
    -0.5. So the tokens of the four steps have the advantages 1, -0.5 and -1, -0.5. A group of one, or of equal rewards,
    has advantage 0. The returns equal the advantages.
    """
    members = find_members(batch)
    sequences = find_sequences(batch, members)
    steps = _steps(batch, sequences)
    rewards = steps.sums(sequences.sums(batch.all_rewards))
    standard = standardised_in_groups(rewards, steps.there, members, norm_adv_by_std)
    result = sequences.spread(steps.spread(discounted_sums(standard, 1.0))).to(batch.token_rewards.dtype)
    return result, result


def _steps(batch: AdvantageBatch, sequences: Sequences) -> Spans:
    if batch.step_ends is not None:
        return find_steps(sequences, batch.step_ends)
    if batch.turn_rewards is not None:
        return find_turns(sequences)
    return find_steps(sequences, batch.loss_mask.new_zeros(batch.loss_mask.shape))
