from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from agentrl.algos import build_algorithm, estimate_advantages
from agentrl.algos.base import Algorithm, TokenBatch
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.types.rollout import Group, Rollout, Stop
from agentrl.types.sample import Sample
from agentrl.types.task import Task
from agentrl.types.trajectory import Author, Segment, Trajectory, VersionSpan


def config(**sections: object) -> RunConfig:
    return RunConfig.model_validate({"model": {"path": "unused"}, **sections})


def model_segment(*token_ids: int, temperature: float = 1.0) -> Segment:
    return Segment(
        Author.MODEL, token_ids, [-0.5] * len(token_ids), [VersionSpan(0, len(token_ids))], temperature=temperature
    )


def trajectory(*answer: int) -> Trajectory:
    """The worked example of docs/design.md: prompt, call, tool, answer."""
    return Trajectory([Segment(Author.PROMPT, [1, 2]), model_segment(3, 4), Segment(Author.TOOL, [5]), *_end(answer)])


def _end(answer: tuple[int, ...]) -> list[Segment]:
    return [model_segment(*answer, temperature=0.5)] if answer else []


def rollout(reward: float, *trajectories: Trajectory, **changes: object) -> Rollout:
    return Rollout(list(trajectories or [trajectory(6)]), Stop.FINISHED, {"score": reward}, **changes)


def group(uid: str, *rollouts: Rollout) -> Group:
    return Group(Task([], uid=uid), list(rollouts))


def credit(algorithm: Algorithm, groups: list[Group]) -> list[Sample]:
    return algorithm.credit(groups, algorithm.samples(groups))


def demonstration() -> Trajectory:
    return Trajectory([Segment(Author.PROMPT, [1, 2]), Segment(Author.DEMONSTRATION, [3, 4])])


def test_grpo_samples_carry_the_sampled_tokens():
    (first, second) = credit(build_algorithm(config()), [group("a", rollout(1), rollout(0, trajectory()))])
    assert first.token_ids == [1, 2, 3, 4, 5, 6]
    assert first.loss_mask == [0, 0, 1, 1, 0, 1]
    assert first.temperatures == [1, 1, 1, 1, 1, 0.5]
    assert first.behaviour_logprobs == [0, 0, -0.5, -0.5, 0, -0.5]
    a = 0.5 / (0.5**0.5 + 1e-6)
    assert first.advantages == pytest.approx([0, 0, a, a, 0, a])
    assert second.advantages == pytest.approx([0, 0, -a, -a, 0])  # not padded to the length of the other sample
    assert first.rollout_id != second.rollout_id
    assert first.uid == second.uid == "a"
    assert first.old_logprobs is first.ref_logprobs is None


def test_credit_equals_the_estimator():
    scores = [0.3, 1.0, 0.2]
    samples = credit(build_algorithm(config()), [group("a", *map(rollout, scores))])
    rewards = torch.tensor(scores)[:, None] * torch.tensor([[0, 0, 0, 0, 0, 1.0]])
    mask = torch.tensor([[0, 0, 1, 1, 0, 1]] * 3)
    expected, _ = estimate_advantages("grpo", rewards, mask, ["a"] * 3)
    assert [sample.advantages for sample in samples] == expected.tolist()


def test_a_rollout_of_several_trajectories_counts_once():
    silent = Trajectory([Segment(Author.PROMPT, [1, 2])])
    split = rollout(1, trajectory(6), trajectory(7), silent)  # the last trajectory has no trained token and is dropped
    samples = credit(build_algorithm(config()), [group("a", split, rollout(0))])
    assert [sample.rollout_id for sample in samples] == ["a/0", "a/0", "a/1"]
    assert samples[0].advantages == samples[1].advantages
    assert samples[0].advantages[-1] == pytest.approx(-samples[2].advantages[-1])


def test_groups_without_a_difference_are_kept_and_failed_rollouts_are_not():
    algorithm = build_algorithm(config())
    kept = credit(algorithm, [group("a", rollout(1), rollout(1), rollout(9, infra_failed=True))])
    assert len(kept) == 2
    assert not any(any(sample.advantages) for sample in kept)
    assert credit(algorithm, [group("a", rollout(1, infra_failed=True))]) == []


def test_grpo_refuses_demonstrations():
    with pytest.raises(ConfigError, match=r"group 'b' holds demonstrations: use algorithm\.name=sft"):
        credit(build_algorithm(config()), [group("b", rollout(1, demonstration()))])


def test_sft_gives_every_trained_token_advantage_1_and_never_trains_the_first():
    unprompted = Trajectory([Segment(Author.DEMONSTRATION, [7, 8])])
    algorithm = build_algorithm(config(algorithm={"name": "sft"}))
    samples = credit(algorithm, [group("a", rollout(0, demonstration(), unprompted))])
    assert [sample.advantages for sample in samples] == [[0, 0, 1, 1], [0, 1]]
    assert [sample.loss_mask for sample in samples] == [[0, 0, 1, 1], [0, 1]]
    assert samples[0].behaviour_logprobs is None


def token_batch(**changes: object) -> TokenBatch:
    values = {
        "logprobs": torch.tensor([[0.0, -1.0, -2.0]]),
        "entropy": torch.tensor([[0.0, 3.0, 1.0]]),
        "loss_mask": torch.tensor([[False, True, True]]),
        "advantages": torch.tensor([[0.0, 1.0, -1.0]]),
        "behaviour_logprobs": torch.tensor([[0.0, -1.0, -2.0]]),
        "old_logprobs": None,
        "ref_logprobs": torch.tensor([[0.0, -1.5, -2.5]]),
        "weights": torch.tensor([1.0]),
        "denominator": 4.0,
    }
    return TokenBatch(**{**values, **changes})


def test_loss_adds_the_divergence_and_subtracts_the_entropy():
    actor = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k1", "entropy_coeff": 0.01}
    algorithm = build_algorithm(config(actor=actor))
    assert algorithm.needs == {"ref_logprobs"}
    assert algorithm.loss.needs_entropy
    loss, metrics = algorithm.loss(token_batch())
    assert loss.item() == pytest.approx((-1 + 1) / 4 + 0.1 * (0.5 + 0.5) / 4 - 0.01 * (3 + 1) / 4)
    assert metrics["kl_loss"].item() == pytest.approx(0.5)
    assert metrics["entropy"].item() == pytest.approx(2.0)


def corrected(**correction: object) -> Algorithm:
    return build_algorithm(config(algorithm={"rollout_correction": correction}))


OLD = torch.tensor([[0.0, -1.1, -2.1]])


def test_ratios_are_relative_to_the_sampling_policy():
    for algorithm in (corrected(), corrected(rollout_rs="token_k1", rollout_rs_threshold=2)):
        assert algorithm.loss(token_batch(old_logprobs=OLD))[1]["ratio_mean"] == 1


def test_decoupled_ratios_are_relative_to_the_policy_at_step_start():
    loss = corrected(bypass_mode=False).loss
    _, metrics = loss(token_batch(old_logprobs=OLD))
    assert metrics["ratio_mean"].item() == pytest.approx(math.exp(0.1))
    with pytest.raises(ConfigError, match="old_logprobs is None"):
        loss(token_batch())


@pytest.mark.parametrize(
    ("correction", "needs"),
    [
        ({}, set()),
        ({"bypass_mode": False}, {"old_logprobs"}),
        ({"loss_type": "reinforce"}, set()),
        ({"loss_type": "reinforce", "rollout_is": "token"}, {"old_logprobs"}),
        ({"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.1}, {"old_logprobs"}),
    ],
)
def test_scores_are_computed_only_if_needed(correction: dict[str, object], needs: set[str]):
    assert corrected(**correction).needs == needs


def test_decoupled_ppo_equals_its_formula():
    """Hilton et al. 2021, equation 4: clipped ratio to the proximal policy, weighted by proximal / behaviour."""
    weights = torch.tensor([[0.0, 1.5, 0.25]])
    logprobs = torch.tensor([[0.0, -0.6, -2.0]], requires_grad=True)
    loss, _ = corrected(bypass_mode=False, rollout_is="token").loss(
        token_batch(logprobs=logprobs, old_logprobs=OLD, importance_weights=weights)
    )
    first = -1.5 * 1.2  # the ratio e^0.5 is clipped: A = 1
    second = 0.25 * math.exp(0.1)  # the ratio is inside the bounds: A = -1
    assert loss.item() == pytest.approx((first + second) / 4)
    loss.backward()
    assert logprobs.grad[0].tolist() == pytest.approx([0, 0, second / 4])  # no gradient through the weights


def test_reinforce_takes_its_weights_outside_the_logarithm():
    algorithm = corrected(loss_type="reinforce", rollout_is="token")
    logprobs = torch.tensor([[0.0, -1.5, -2.0]], requires_grad=True)
    weights = torch.tensor([[0.0, 2.0, 0.5]])
    loss, metrics = algorithm.loss(token_batch(logprobs=logprobs, old_logprobs=OLD, importance_weights=weights))
    loss.backward()
    assert logprobs.grad[0].tolist() == pytest.approx([0, -2.0 / 4, 0.5 / 4])
    assert metrics["ppo_kl"].item() == pytest.approx(0.25)  # divergence from the policy that sampled


def test_the_divergence_from_the_reference_is_not_weighed():
    actor = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": "k1"}
    loss = build_algorithm(config(actor=actor)).loss
    weights = torch.tensor([[0.0, 0.0, 0.0]])
    assert loss(token_batch(importance_weights=weights))[0].item() == pytest.approx((0.5 + 0.5) / 4)


def test_the_configured_correction_is_applied():
    algorithm = corrected(loss_type="reinforce", rollout_is="token", rollout_is_threshold=1.5)
    samples = [
        replace(each, old_logprobs=[0.0] * 6) for each in credit(algorithm, [group("a", rollout(1), rollout(0))])
    ]
    weighed, metrics = algorithm.correct(samples)
    assert weighed[0].importance_weights == [0, 0, 1.5, 1.5, 0, 1.5]  # e^0.5, truncated
    assert metrics["correction/truncated"] == 1
    assert build_algorithm(config()).correct(samples) == (samples, {})


def test_the_loss_gets_the_configured_options():
    algorithm = build_algorithm(
        config(
            actor={"loss_agg_mode": "seq-mean-token-sum-norm", "clip_ratio": 0.1, "clip_ratio_high": 0.5},
            data={"max_response_length": 77},
        )
    )
    assert (algorithm.loss.aggregation, algorithm.loss.norm_length) == ("seq-mean-token-sum-norm", 77)
    assert algorithm.needs == frozenset()
    far = token_batch(behaviour_logprobs=torch.tensor([[0.0, -1.3, -1.8]]))  # ratios 1.35 and 0.82
    assert algorithm.loss(far)[1]["pg_clipfrac"].item() == pytest.approx(0.5)


def test_divergence_without_reference_scores_is_refused():
    with pytest.raises(ConfigError, match="needs ref_logprobs"):
        build_algorithm(config(actor={"use_kl_loss": True})).loss(token_batch(ref_logprobs=None))


def test_kl_in_the_reward_favours_rollouts_near_the_reference():
    """Two rollouts with equal reward: the rollout nearer to the reference gets the higher advantage."""
    settings = {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.1}}
    algorithm = build_algorithm(config(algorithm=settings))
    assert algorithm.needs == {"ref_logprobs"}
    groups = [group("a", rollout(1), rollout(1))]
    near, far = algorithm.samples(groups)
    scored = [replace(near, ref_logprobs=near.behaviour_logprobs), replace(far, ref_logprobs=[-2.0] * 6)]
    advantages = [sample.advantages[-1] for sample in algorithm.credit(groups, scored)]
    assert advantages == pytest.approx([0.7071, -0.7071], rel=1e-3)


def test_rollouts_above_the_threshold_are_imitated():
    algorithm = build_algorithm(config(algorithm={"name": "rft", "rft_threshold": 0.5}))
    samples = credit(algorithm, [group("a", rollout(0.5), rollout(0.4), rollout(1, infra_failed=True))])
    assert [sample.advantages for sample in samples] == [[0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]]
    read, metrics = algorithm.correct(samples)
    assert read == samples[:1]
    assert metrics == {"kept/samples": 0.5}


def test_a_group_without_its_greedy_rollout_has_no_advantage():
    algorithm = build_algorithm(config(algorithm={"name": "remax"}))
    scored = [replace(rollout(score), rewards={"score": score, "baseline": 0.25}) for score in (1.0, 0.0)]
    samples = credit(algorithm, [group("a", *scored), group("b", rollout(1), rollout(0))])
    assert [sample.advantages[-1] for sample in samples] == pytest.approx([0.75, -0.25, 0, 0])


def test_truncated_rollouts_are_marked():
    cut = replace(rollout(0), stop=Stop.MAX_RESPONSE_TOKENS)
    samples = build_algorithm(config()).samples([group("a", rollout(1), cut)])
    assert [sample.truncated for sample in samples] == [False, True]
