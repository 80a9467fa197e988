from __future__ import annotations

import math

import pytest

from agentrl.backends.torch.optim import learning_rate_scale
from agentrl.config.actor import OptimConfig


def scales(kind: str, num_updates: int = 12, **changes: object) -> list[float]:
    config = OptimConfig(lr_scheduler_type=kind, **changes)
    return [learning_rate_scale(config, update, 10) for update in range(num_updates)]


def test_warm_up_reaches_the_peak_with_its_last_update():
    assert scales("constant", 6, lr_warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_warm_up_may_be_a_share_of_the_run():
    assert scales("linear", lr_warmup_steps_ratio=0.4) == scales("linear", lr_warmup_steps=4)
    assert scales("linear", lr_warmup_steps_ratio=0.4, lr_warmup_steps=2) == scales("linear", lr_warmup_steps=2)


@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("warmup", [0, 2])
def test_decay_equals_the_formula(warmup: int, floor: float):
    linear = scales("linear", lr_warmup_steps=warmup, min_lr_ratio=floor)
    cosine = scales("cosine", lr_warmup_steps=warmup, min_lr_ratio=floor)
    for update in range(warmup, 12):
        progress = min(1, (update - warmup) / (10 - warmup))
        assert linear[update] == pytest.approx(1 - (1 - floor) * progress)
        assert cosine[update] == pytest.approx(floor + (1 - floor) * math.cos(math.pi * progress / 2) ** 2)
    assert linear[10:] == cosine[10:] == pytest.approx([floor, floor])


def test_warm_up_longer_than_the_run_stays_below_the_peak():
    assert max(scales("linear", 10, lr_warmup_steps=20)) == 0.5
