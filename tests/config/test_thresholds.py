import pytest

from agentrl.config import validate_config
from agentrl.config.algorithm import RolloutCorrectionConfig
from agentrl.config.correction_bounds import Bounds, Rejection, read_rejections, read_weight_bounds
from agentrl.errors import ConfigError


@pytest.mark.parametrize(
    ("said", "bounds"), [(2.0, (None, 2)), ("2", (None, 2)), ("0.5_5.0", (0.5, 5)), (1, (None, 1)), ("1.0_1.0", (1, 1))]
)
def test_bounds_of_weights(said, bounds):
    assert read_weight_bounds(said) == Bounds(*bounds)


def test_rejections_are_read_with_one_bound_for_all_or_one_each():
    both = {"rollout_rs": "token_k1, seq_max_k3,token_k1"}
    shared = RolloutCorrectionConfig(**both, rollout_rs_threshold=2)
    assert shared.rejections == (Rejection("token_k1", Bounds(0.5, 2)), Rejection("seq_max_k3", Bounds(None, 2)))
    own = RolloutCorrectionConfig(**both, rollout_rs_threshold="0.5_3.0, 0.01")
    assert own.rejections == (Rejection("token_k1", Bounds(0.5, 3)), Rejection("seq_max_k3", Bounds(None, 0.01)))
    assert RolloutCorrectionConfig().rejections == ()


def test_every_name_is_a_rejection_that_verl_has():
    names = "token_k1,token_k2,token_k3,seq_sum_k1,seq_sum_k2,seq_sum_k3,seq_mean_k1,seq_mean_k2,seq_mean_k3,seq_max_k2"
    assert len(read_rejections(names + ",seq_max_k3")) == 11


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"rollout_is_threshold": "0.5-5"}, "rollout_is_threshold': expected a number, or a range such as '0.5_5.0'"),
        ({"rollout_is_threshold": -1}, "expected a positive number"),
        ({"rollout_is_threshold": "2.0_5.0"}, "the range must contain 1 (on-policy)"),
        # YAML reads 0.5_2 as this number
        ({"rollout_is_threshold": 0.52}, "write both bounds with a decimal point: '0.5_2.0'"),
        ({"rollout_rs": "token_k4"}, "rollout_rs': unknown rejection 'token_k4': did you mean 'token_k"),
        ({"rollout_rs": "seq_max_k1"}, "unknown rejection 'seq_max_k1'"),
        ({"rollout_rs": " , "}, "name at least one of token_k1"),
        ({"rollout_rs": "token_k3", "rollout_rs_threshold": "0.5_2.0"}, "one maximum divergence, not a range"),
        ({"rollout_rs": "token_k3", "rollout_rs_threshold": "1,2"}, "expected one bound, or 1"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, "must contain 1"),
        ({"rollout_is": "group"}, "rollout_is': input should be 'token' or 'sequence'"),
        ({"rollout_is_threshold": 3}, "rollout_is_threshold' has no effect without"),
        ({"rollout_is_batch_normalize": True}, "rollout_is_batch_normalize' has no effect without"),
        ({"rollout_rs_threshold": 3}, "rollout_rs_threshold' has no effect without"),
        ({"rollout_rs": "token_k1"}, "rollout_rs=token_k1' needs 'algorithm.rollout_correction.rollout_rs_threshold'"),
        ({"bypass_mode": False, "loss_type": "reinforce"}, "loss_type' has no effect without"),
        ({"rollout_is": "token"}, "rollout_is' has no effect without 'algorithm.rollout_correction.bypass_mode=false'"),
    ],
)
def test_unsupported_thresholds_are_refused_by_name(section, complaint):
    with pytest.raises(ConfigError) as raised:
        validate_config({"model": {"path": "m"}, "algorithm": {"rollout_correction": section}})
    assert complaint in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "section", [{"bypass_mode": False}, {"rollout_is": "token"}, {"loss_type": "reinforce"}, {"rollout_rs": "token_k1"}]
)
def test_sft_has_no_off_policy_correction(section):
    algorithm = {"name": "sft", "rollout_correction": section}
    with pytest.raises(ConfigError, match=r"has no effect without a policy gradient"):
        validate_config({"model": {"path": "m"}, "algorithm": algorithm})


def test_reinforce_has_no_clip_thresholds():
    correction = {"loss_type": "reinforce", "rollout_is": "sequence"}
    values = {"model": {"path": "m"}, "algorithm": {"rollout_correction": correction}}
    assert validate_config(values).algorithm.rollout_correction.corrects
    with pytest.raises(ConfigError, match=r"'actor\.clip_ratio_high' has no effect without"):
        validate_config({**values, "actor": {"clip_ratio_high": 0.3}})
