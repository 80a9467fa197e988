from __future__ import annotations

import pytest

from agentrl.algos import AdaptiveKL, FixedKL
from agentrl.errors import ConfigError


def test_adaptive_kl_equals_the_worked_example():
    control = AdaptiveKL(init=0.5, target=0.2, horizon=1000)
    control.update(0.3, 100)  # the KL is 50% too high; the error is clipped to 20%
    assert control.value == pytest.approx(0.5 * 1.02)


def test_adaptive_kl_follows_the_paper():
    control, expected = AdaptiveKL(0.1, 0.5, 2000), 0.1
    for measured in (0.0, 0.45, 0.5, 0.52, 9.0):
        control.update(measured, 64)
        expected *= 1 + max(-0.2, min(0.2, measured / 0.5 - 1)) * 64 / 2000
        assert control.value == pytest.approx(expected)


def test_adaptive_kl_converges_to_the_target():
    control = AdaptiveKL(1e-3, 0.1, 500)
    for _ in range(500):
        control.update(0.02 / control.value, 100)  # a higher coefficient lowers the divergence
    assert control.value == pytest.approx(0.2, rel=1e-3)


def test_kl_controller_state_is_its_value():
    first, second = AdaptiveKL(0.1, 0.5, 2000), AdaptiveKL(0.9, 0.5, 2000)
    first.update(0.3, 64)
    second.value = first.value
    for control in (first, second):
        control.update(0.7, 64)
    assert first == second


def test_fixed_kl_coefficient_is_constant():
    control = FixedKL(0.3)
    control.update(100.0, 64)
    assert control.value == 0.3


def test_horizon_that_could_flip_the_sign_is_refused():
    with pytest.raises(ConfigError, match=r"horizon 10 .* 128 rollouts .* more than 25.6"):
        AdaptiveKL(0.1, 0.1, 10).update(0.1, 128)
