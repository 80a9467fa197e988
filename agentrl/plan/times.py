"""Predict the times of a run on a fleet of devices, for `agentrl plan`."""

from __future__ import annotations

import math

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
from agentrl.plan.time.step import hourly_price, predict, setting_of
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
        max_kv_tokens: largest number of tokens in the KV cache of a replica.

    Raises:
        ConfigError: the configuration uses more devices than the fleet has.
    """
    if problem := too_many(config, fleet):
        raise ConfigError.keyless(problem)
    layout, servers, live, hardware = layout_of(config), servers_of(config), config.algorithm.live, fleet.hardware
    lengths = Remembered(lengths if live else Rows(lengths))
    fitted = calibration or Calibration(hardware)
    engine = fitted.engine(sampling_of(config, shape, servers, hardware))
    sent_s = fitted.publishing_s(shape, layout, servers, hardware) if live else 0.0
    setting = setting_of(config, servers, max_kv_tokens=max_kv_tokens, publish_s=sent_s, other_s=fitted.other_s)
    split = simulate(lengths, engine, Training(shape, layout, fitted.trainer, passes_of(config)), setting)
    phases = predict(
        *(shape, layout, fitted.trainer, lengths, config),
        engine=engine,
        max_kv_tokens=max_kv_tokens,
        rollout_s=None if setting.overlaps and live else split.trainer_idle * split.step_s,
        sent_s=sent_s,
    )
    return TimeAnswer(phases, split, hourly_price(layout, servers, hardware), f"{num_used(config)}x{hardware.name}")
