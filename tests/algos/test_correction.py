from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algos.off_policy.correction import correct
from agentrl.config.algorithm import RolloutCorrectionConfig
from agentrl.types.sample import Sample

NOTHING = RolloutCorrectionConfig()


def sample(log_ratios: list[float | None], rollout_id: str = "") -> Sample:
    """A trajectory with these log-ratios; None marks a token that is not trained."""
    mask = [int(value is not None) for value in log_ratios]
    behaviour = [-1.0 * trained for trained in mask]
    old = [(value - 1) if value is not None else 0.0 for value in log_ratios]
    ones = [1.0] * len(mask)
    return Sample([*range(len(mask))], mask, ones, [0.5 * each for each in mask], behaviour, old, rollout_id=rollout_id)


# one rollout of two trajectories, whose product is e; another of e^-1
STEP = [sample([None, 0.5, None, 1.0], "a"), sample([None, -0.5], "a"), sample([None, -1.0], "b")]


def settings_of(**changes: object) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig.model_validate(changes)


def test_without_options_nothing_changes():
    assert correct(STEP, NOTHING) == (STEP, {})
    assert correct([], settings_of(rollout_is="token")) == ([], {})


def test_token_weights_are_truncated():
    corrected, metrics = correct(STEP, settings_of(rollout_is="token", rollout_is_threshold=2))
    assert [each.importance_weights for each in corrected] == [
        pytest.approx([0, math.exp(0.5), 0, 2]),
        pytest.approx([0, math.exp(-0.5)]),
        pytest.approx([0, math.exp(-1)]),
    ]
    weights = [math.exp(0.5), 2, math.exp(-0.5), math.exp(-1)]
    assert metrics == pytest.approx(
        {
            "correction/weight_mean": sum(weights) / 4,
            "correction/weight_max": 2,
            "correction/weight_min": math.exp(-1),
            "correction/ess": (sum(weights) / 4) ** 2 / (sum(w * w for w in weights) / 4),
            "correction/truncated": 1 / 4,
        }
    )
    assert [each.loss_mask for each in corrected] == [each.loss_mask for each in STEP]


def test_a_sequence_is_a_rollout_with_all_its_trajectories():
    corrected, metrics = correct(STEP, settings_of(rollout_is="sequence", rollout_is_threshold=10))
    assert [each.importance_weights for each in corrected] == [
        pytest.approx([0, math.e, 0, math.e]),
        pytest.approx([0, math.e]),
        pytest.approx([0, 1 / math.e]),
    ]
    assert metrics["correction/weight_mean"] == pytest.approx((math.e + 1 / math.e) / 2)  # mean over the two rollouts
    nameless = [replace(each, rollout_id="") for each in STEP]
    assert correct(nameless, settings_of(rollout_is="sequence"))[0][2].importance_weights == pytest.approx(
        [0, 1 / math.e]
    )


def test_masked_weights_stay_in_the_denominators_and_normalised_ones_have_mean_1():
    corrected, metrics = correct(STEP, settings_of(rollout_is="token", rollout_is_threshold="0.5_2.0"))
    assert [each.importance_weights for each in corrected] == [
        pytest.approx([0, math.exp(0.5), 0, 0]),
        pytest.approx([0, math.exp(-0.5)]),
        [0, 0],
    ]
    assert metrics["correction/masked"] == pytest.approx(2 / 4)
    assert [each.num_trained_tokens for each in corrected] == [2, 1, 1]
    even, _ = correct(STEP, settings_of(rollout_is="token", rollout_is_batch_normalize=True))
    assert sum(sum(each.importance_weights) for each in even) == pytest.approx(4)


def test_rejected_tokens_and_rollouts_leave_the_mask():
    corrected, metrics = correct(STEP, settings_of(rollout_rs="token_k2", rollout_rs_threshold=0.3))
    assert [each.loss_mask for each in corrected] == [[0, 1, 0, 0], [0, 1], [0, 0]]
    assert metrics == pytest.approx({"correction/rejected_tokens": 0.5, "correction/rejected_rollouts": 0.5})
    both = settings_of(rollout_rs="seq_sum_k1,token_k2", rollout_rs_threshold="0.35_3.0,0.3")
    corrected, metrics = correct(STEP, both)  # behaviour / policy of a complete rollout: e^-1 and e
    assert [each.loss_mask for each in corrected] == [[0, 1, 0, 0], [0, 1], [0, 0]]
    alone = settings_of(rollout_rs="seq_sum_k1", rollout_rs_threshold="0.4_3.0")
    assert [each.loss_mask for each in correct(STEP, alone)[0]] == [[0, 0, 0, 0], [0, 0], [0, 1]]


def test_importance_weights_are_computed_before_rejection():
    asked = settings_of(rollout_is="sequence", rollout_is_threshold=10, rollout_rs="token_k2", rollout_rs_threshold=0.3)
    corrected, metrics = correct(STEP, asked)
    assert corrected[0].importance_weights == pytest.approx([0, math.e, 0, math.e])
    assert corrected[0].loss_mask == [0, 1, 0, 0]
    assert {"correction/weight_mean", "correction/rejected_tokens"} <= metrics.keys()


def test_samples_that_were_not_scored_are_a_mistake_of_ours():
    with pytest.raises(ValueError, match="rollout 'a' has no log-probabilities to compare"):
        correct([replace(STEP[0], old_logprobs=None)], settings_of(rollout_is="token"))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.floats(-3, 3), min_size=1, max_size=4), st.integers(0, 2)), min_size=1, max_size=6),
    st.sampled_from(
        [
            {"rollout_is": "token", "rollout_is_batch_normalize": True},
            {"rollout_is": "sequence", "rollout_is_threshold": "0.5_5.0"},
            {"rollout_rs": "seq_mean_k3,token_k1", "rollout_rs_threshold": "0.5,0.3_4.0"},
        ]
    ),
    st.randoms(),
)
def test_weights_do_not_depend_on_the_position_of_a_sample(trajectories, changes, random):
    step = [sample([None, *logs], f"r{rollout}") for logs, rollout in trajectories]
    order = random.sample(range(len(step)), len(step))
    plain, metrics = correct(step, settings_of(**changes))
    shuffled, same = correct([step[number] for number in order], settings_of(**changes))
    for place, number in enumerate(order):
        assert shuffled[place].loss_mask == plain[number].loss_mask
        assert shuffled[place].importance_weights == pytest.approx(plain[number].importance_weights)
    assert same == pytest.approx(metrics)
