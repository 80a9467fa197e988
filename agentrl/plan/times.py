"""Times of a configuration on a fleet: what `agentrl plan` prints about time."""

from __future__ import annotations

import math
from dataclasses import replace

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.plan.answer import TimeAnswer
from agentrl.plan.calibration import Calibration
from agentrl.plan.devices import too_many
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import layout_of, num_used, servers_of
from agentrl.plan.lengths import Lengths, Remembered, Rows
from agentrl.plan.shapes import Shape
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import hourly_price, predict, publish_s, setting_of
from agentrl.plan.time.training import Training


def times_of(
    config: RunConfig,
    shape: Shape,
    fleet: Fleet,
    lengths: Lengths,
    *,
    calibration: Calibration | None = None,
    max_kv_tokens: float = math.inf,
) -> TimeAnswer:
    """Predict the times of a run.

    Args:
        fleet: the devices of trainer and engine together.
        calibration: figures fitted to a run on this hardware.
        max_kv_tokens: tokens of KV that a replica holds.

    Raises:
        ConfigError: the configuration uses more devices than the fleet has.
    """
    if problem := too_many(config, fleet):
        raise ConfigError.keyless(problem)
    layout, servers, live = layout_of(config), servers_of(config), config.algorithm.live
    lengths = Remembered(lengths if live else Rows(lengths))
    fitted = calibration or Calibration(fleet.hardware)
    engine = fitted.engine(sampling_of(config, shape, servers, fleet.hardware))
    trainer = Training(shape, layout, fitted.trainer, passes_of(config))
    sent_s = publish_s(shape, layout, servers, fleet.hardware, fleet.hardware)
    setting = setting_of(
        config, servers, max_kv_tokens=max_kv_tokens, publish_s=sent_s if fitted.publish_s is None else fitted.publish_s
    )
    split = simulate(lengths, engine, trainer, replace(setting, other_s=fitted.other_s))
    alone_s = None if setting.overlaps and live else split.trainer_idle * split.step_s
    phases = predict(
        shape, layout, fitted.trainer, lengths, config, engine=engine, max_kv_tokens=max_kv_tokens, rollout_s=alone_s
    )
    devices = f"{num_used(config)}x{fleet.hardware.name}"
    return TimeAnswer(phases, split, hourly_price(layout, servers, fleet.hardware), devices)
