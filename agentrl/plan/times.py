"""Times of a configuration on a fleet, and of a saved run: what `agentrl plan` prints about time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.folder import is_folder
from agentrl.plan.answer import TimeAnswer
from agentrl.plan.calibration import Calibration
from agentrl.plan.check import Phase
from agentrl.plan.hardware import Fleet
from agentrl.plan.layout import layout_of, servers_of
from agentrl.plan.lengths import Lengths
from agentrl.plan.shapes import Shape
from agentrl.plan.split.simulate import simulate
from agentrl.plan.time.passes import passes_of
from agentrl.plan.time.sampling import sampling_of
from agentrl.plan.time.step import devices_of, hourly_price, predict, publish_s, setting_of
from agentrl.plan.time.training import Training
from agentrl.replay.saved_run import open_saved
from agentrl.replay.trusted_config import trusted_values

NOTHING: Mapping[str, object] = {}
NUM_STEPS = 6
"""Simulated steps, after the first ones, whose rollouts do not overlap with an update."""


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
    layout, servers = layout_of(config), servers_of(config)
    if (used := devices_of(layout, servers)) > fleet.num_devices:
        raise ConfigError.keyless(f"the configuration uses {used} devices, but the plan has {fleet}")
    fitted = calibration or Calibration(fleet.hardware)
    engine = fitted.engine(sampling_of(config, shape, servers, fleet.hardware))
    trainer = Training(shape, layout, fitted.trainer, passes_of(config))
    sent_s = publish_s(shape, layout, servers, fleet.hardware, fleet.hardware)
    setting = setting_of(
        config, servers, max_kv_tokens=max_kv_tokens, publish_s=sent_s if fitted.publish_s is None else fitted.publish_s
    )
    split = simulate(
        lengths,
        engine,
        trainer,
        replace(setting, other_s=fitted.other_s),
        NUM_STEPS,
        warm_up=1 + config.trainer.max_staleness,
    )
    phases = predict(shape, layout, fitted.trainer, lengths, config, engine=engine, max_kv_tokens=max_kv_tokens)
    return TimeAnswer(phases, split, hourly_price(layout, servers, fleet.hardware), f"{used}x{fleet.hardware.name}")


def config_of_run(where: str, changes: Mapping[str, object] = NOTHING) -> RunConfig:
    """Return the configuration of a saved run, without values that would run code.

    Args:
        changes: other values under dotted keys.

    Raises:
        DataError: there is no run.
        ConfigError: the configuration is not one of agentrl, or a change is invalid; one line per mistake.
    """
    saved = open_saved(where).config
    values = trusted_values(saved)
    for key, value in {"model.path": _model_folder(saved), **changes}.items():
        _put(values, key.split("."), value)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        mistakes = [f"'{'.'.join(map(str, each['loc']))}': {each['msg']}" for each in error.errors()]
        raise ConfigError.keyless(*(f"configuration of '{where}', {mistake}" for mistake in mistakes)) from None


def _model_folder(saved: Mapping[str, object]) -> str:
    """The model's folder, of which only `config.json` is read. A name on the hub is not taken from a run."""
    model = saved.get("model")
    path = model.get("path") if isinstance(model, dict) else None
    return path if isinstance(path, str) and is_folder(path) else "none"


def _put(values: dict[str, object], path: Sequence[str], value: object) -> None:
    name, *rest = path
    if not rest:
        values[name] = value
        return
    inner = values.get(name)
    values[name] = inner = inner if isinstance(inner, dict) else {}
    _put(inner, rest, value)


def check_lines(phases: Sequence[Phase]) -> Iterator[str]:
    """Yield the table of `agentrl plan --check RUN`: predicted and measured seconds, and the difference."""
    yield f"{'phase':<16}{'predicted':>12}{'measured':>12}{'difference':>12}"
    for phase in phases:
        yield f"{phase.name:<16}{phase.predicted_s:>10.4g} s{phase.measured_s:>10.4g} s{phase.off:>+12.0%}"
