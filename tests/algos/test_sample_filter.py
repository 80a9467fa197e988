from __future__ import annotations

from dataclasses import replace

import pytest

from agentrl.algos.sample_filter import excluded_by_loss, keep_of
from agentrl.config.algorithm import AlgorithmConfig
from agentrl.types.sample import Sample


def sample(uid: str, advantage: float, *, truncated: bool = False) -> Sample:
    return Sample([1, 2], [0, 1], [1, 1], [0, advantage], truncated=truncated, uid=uid, rollout_id=f"{uid}/{advantage}")


SAMPLES = [sample("a", 1.0), sample("a", 0.0), sample("b", 0.0), sample("b", -0.5, truncated=True), sample("c", 0.0)]


def kept(**settings: object) -> list[Sample]:
    keep = keep_of(AlgorithmConfig(**settings))
    assert keep is not None
    return keep(SAMPLES)


@pytest.mark.parametrize("name", ["grpo", "gae", "gspo"])
def test_policy_gradients_keep_all_samples(name: str) -> None:
    assert keep_of(AlgorithmConfig(name=name)) is None


def test_zero_advantage_samples_are_dropped_on_request() -> None:
    assert kept(zero_variance_groups="drop") == [SAMPLES[0], SAMPLES[3]]


def test_truncated_samples_are_dropped_on_request() -> None:
    assert kept(overlong_filter=True) == [*SAMPLES[:3], SAMPLES[4]]
    assert kept(overlong_filter=True, zero_variance_groups="drop") == [SAMPLES[0]]


@pytest.mark.parametrize("name", ["rft", "sft"])
def test_sft_uses_the_chosen_rollouts(name: str) -> None:
    assert kept(name=name) == [SAMPLES[0], SAMPLES[3]]


PAIRS = [sample("a", 1.0), sample("a", 0.0), sample("a", -1.0, truncated=True), sample("b", -1.0), sample("b", 1.0)]


@pytest.mark.parametrize("name", ["pairwise", "dpo", "reward_pairs"])
def test_only_complete_pairs_are_read(name: str) -> None:
    def read(**settings: object) -> list[Sample]:
        return keep_of(AlgorithmConfig(name=name, **settings))(PAIRS)

    assert read() == [PAIRS[0], *PAIRS[2:]]
    assert read(overlong_filter=True) == PAIRS[3:]


def test_ranking_uses_complete_groups() -> None:
    assert kept(name="ranking") == SAMPLES[:4]
    assert kept(name="ranking", overlong_filter=True) == SAMPLES[:2]


def test_samples_unused_by_the_loss_have_a_reason() -> None:
    rejected = replace(SAMPLES[0], loss_mask=[0, 0])
    read = kept(overlong_filter=True, zero_variance_groups="drop")
    assert read == SAMPLES[:1]
    excluded = {"a/0.0": "no_advantage", "b/0.0": "no_advantage", "c/0.0": "no_advantage", "b/-0.5": "overlong"}
    assert excluded_by_loss(SAMPLES, read, overlong=True) == excluded
    assert excluded_by_loss(SAMPLES, [rejected], overlong=True) == excluded | {"a/1.0": "rejected_by_correction"}
    assert excluded_by_loss(SAMPLES, read, overlong=False)["b/-0.5"] == "no_advantage"
    assert excluded_by_loss(SAMPLES, SAMPLES, overlong=True) == {}


def test_a_rollout_with_a_token_in_the_loss_is_not_excluded() -> None:
    other = replace(SAMPLES[0], loss_mask=[0, 0])  # a second trajectory of the same rollout
    assert excluded_by_loss([SAMPLES[0], other], [SAMPLES[0], other], overlong=True) == {}
